"""Collecting what is wrong with the NATS part of a file (server-operations.md section 5, item 4)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.config.catalogue import Kind
from broker.config.values import Node, go_type, kind, quoted


@dataclass(slots=True)
class Problems:
    """What was found so far.

    Attributes:
        errors: Texts with their place.
        warnings: Texts with their place; no reason not to start.
        unavailable: What the server cannot do yet.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)

    def error(self, node: Node, text: str) -> None:
        """Takes note of an error."""
        self.errors.append(f"{node.place}: {text}")

    def warn(self, node: Node, text: str) -> None:
        """Takes note of a warning."""
        self.warnings.append(f"{node.place}: {text}")

    def value(self, node: Node, expected: Kind) -> bool | int | str | None:
        """Returns a plain value, None with an error if it has another type."""
        value = node.value
        if isinstance(value, bool | int | str) and kind(value) == expected.value:
            return value
        name = _TYPES.get(expected, expected.value)
        self.error(node, f"interface conversion: interface {{}} is {go_type(value)}, not {name}")
        return None

    def map(self, node: Node) -> dict[str, Node] | None:
        """Returns a map, None with an error if it is none."""
        if isinstance(node.value, dict):
            return node.value
        self.value(node, Kind.MAP)
        return None

    def words(self, node: Node) -> tuple[str, ...]:
        """Returns a list of strings, or a string on its own; without those elements that are something else."""
        if isinstance(node.value, str):
            return (node.value,)
        if not isinstance(node.value, list):
            self.value(node, Kind.LIST)
            return ()
        return tuple(value for each in node.value if isinstance(value := self.value(each, Kind.STRING), str))

    def known(self, node: Node, keys: Container[str]) -> Iterator[tuple[str, Node]]:
        """Yields the entries of a map whose keys (in lower case) are known; others are errors."""
        if isinstance(node.value, dict):
            for name, entry in node.value.items():
                if name.lower() in keys:
                    yield name.lower(), entry
                elif not entry.used:
                    self.error(entry, f"unknown field {quoted(name)}")


_TYPES: Final = {Kind.MAP: "map[string]interface {}", Kind.LIST: "[]interface {}"}
