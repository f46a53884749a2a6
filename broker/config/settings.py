"""Settings by name: defaults, overridden by a file, overridden by the command line (server-operations.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from broker.config.catalogue import DEFAULTS, Setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from broker.config.values import ConfigNode
    from broker.nats.nats_options import Authorization, TLSOptions
    from stantools.store.limits import PatternLimits

#: settings for which zero or an empty text means the default
_ZERO_IS_DEFAULT: Final = frozenset(name for name in DEFAULTS if name.startswith("nats."))
#: settings for which the file overrides the command line
_FILE_WINS: Final = frozenset(("cluster.peers", "encryption_key"))


@dataclass(slots=True)
class NatsFile:
    """The NATS part of a file."""

    #: setting -> value; durations are nanoseconds
    settings: dict[str, Setting] = field(default_factory=dict)
    authorization: Authorization | None = None  #: None if not in the file
    tls: TLSOptions | None = None  #: TLS of clients; None if not in the file
    cluster_tls: TLSOptions | None = None  #: TLS of routes; None if not in the file
    top: Mapping[str, ConfigNode] = field(default_factory=dict)  #: the whole file
    #: features in the file that the server lacks, for people
    unavailable: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  #: lines for the log at the start


@dataclass(slots=True)
class StreamingFile:
    """The streaming part of a file."""

    #: setting -> value; durations are nanoseconds
    settings: dict[str, Setting] = field(default_factory=dict)
    channels: dict[str, PatternLimits] = field(default_factory=dict)  #: limits by name or pattern of channels


class BrokerSettings:
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
        value = self._values.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        value = self._values.get(name, 0)
        return value if isinstance(value, int) else 0

    def switch(self, name: str) -> bool:
        return self._values.get(name, False) is True

    def of(self, options: type[DataclassInstance], prefix: str) -> dict[str, Any]:
        """Returns the values for the fields of an options class, by field name."""
        names = (each.name for each in fields(options))
        return {name: self._values[prefix + name] for name in names if prefix + name in self._values}
