"""Settings by name: defaults, a file over them, the command line over both (server-operations.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from broker.config.catalogue import DEFAULTS, Setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from broker.config.values import Node
    from broker.nats.options import Authorization, TLSOptions
    from stantools.store.limits import PatternLimits

#: Settings for which zero, or an empty text, stands for the default.
_ZERO_IS_DEFAULT: Final = frozenset(name for name in DEFAULTS if name.startswith("nats."))
#: Settings where the file wins over the command line.
_FILE_WINS: Final = frozenset(("cluster.peers", "encryption_key"))


@dataclass(slots=True)
class NatsFile:
    """What a file says about the NATS server."""

    #: Setting to value; only what is there. Durations are nanoseconds.
    settings: dict[str, Setting] = field(default_factory=dict)
    authorization: Authorization | None = None  #: who may connect; None if the file says nothing
    tls: TLSOptions | None = None  #: TLS for clients; None if the file says nothing
    cluster_tls: TLSOptions | None = None  #: TLS for routes; None if the file says nothing
    top: Mapping[str, Node] = field(default_factory=dict)  #: the file as it is
    #: What there is in the file that the server cannot do yet, for people.
    unavailable: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  #: what the log should say at the start


@dataclass(slots=True)
class StreamingFile:
    """What a file says about streaming."""

    #: Setting to value; only what is there. Durations are nanoseconds.
    settings: dict[str, Setting] = field(default_factory=dict)
    channels: dict[str, PatternLimits] = field(default_factory=dict)  #: what names and patterns of channels set


class Settings:
    """What holds.

    Args:
        nats: Of a file's NATS part.
        streaming: Of a file's streaming part.
        flags: Of the command line.
    """

    def __init__(
        self, nats: Mapping[str, Setting], streaming: Mapping[str, Setting], flags: Mapping[str, Setting]
    ) -> None:
        self.given: dict[str, Setting] = {**nats, **streaming}
        for name, value in flags.items():
            if name not in _FILE_WINS or not self.given.get(name):
                self.given[name] = value
        for name in _ZERO_IS_DEFAULT:
            if not self.given.get(name, True):
                del self.given[name]
        self._values: dict[str, Setting] = {**DEFAULTS, **self.given}

    def text(self, name: str) -> str:
        """Returns a text; empty if nothing was said."""
        value = self._values.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Returns a number; 0 if nothing was said."""
        value = self._values.get(name, 0)
        return value if isinstance(value, int) else 0

    def switch(self, name: str) -> bool:
        """Returns whether something is on; off if nothing was said."""
        return self._values.get(name, False) is True

    def of(self, options: type[DataclassInstance], prefix: str) -> dict[str, Any]:
        """Returns what was said, or is said by default, about the fields of an options class, by their names."""
        names = (each.name for each in fields(options))
        return {name: self._values[prefix + name] for name in names if prefix + name in self._values}
