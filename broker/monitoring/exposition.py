"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class Family:
    """All samples of one name.

    Attributes:
        name: Its name; counters end with `_total`.
        kind: `gauge` or `counter`.
        help: What it says, in one line, with the unit.
        samples: Values with their labels.
    """

    name: str
    kind: str
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Adds a sample."""
        self.samples.append((labels, value))

    def lines(self) -> Iterator[str]:
        """Writes it down; nothing if there is no sample."""
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for labels, value in self.samples:
            yield f"{self.name}{_labels(labels.items())} {_number(value)}\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    inner = ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels])
    return f"{{{inner}}}" if inner else ""


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    # Sequences are exact, however large.
    return str(int(value)) if value == int(value) else repr(float(value))
