"""Settings by name: defaults, a file over them, the command line over both (server-operations.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stantools.format.crc import IEEE
from stantools.store.limits import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_CHANNELS,
    DEFAULT_MAX_MSGS,
    DEFAULT_MAX_SUBS,
    DEFAULT_SLICE_MAX_BYTES,
)

if TYPE_CHECKING:
    from broker.nats.options import Authorization, TLSOptions
    from stantools.store.limits import PatternLimits

Setting = bool | int | str | tuple[str, ...]

_SECOND: Final = 1_000_000_000
_MEGABYTE: Final = 1 << 20

#: Settings whose default is not zero, false or empty. Durations are nanoseconds.
DEFAULTS: Final[Mapping[str, Setting]] = {
    "cluster_id": "test-cluster",
    "discover_prefix": "_STAN.discover",
    "store": "MEMORY",
    "hb_interval": 30 * _SECOND,
    "hb_timeout": 10 * _SECOND,
    "hb_fail_count": 10,
    "io_batch_size": 1024,
    "limits.max_channels": DEFAULT_MAX_CHANNELS,
    "limits.max_subs": DEFAULT_MAX_SUBS,
    "limits.max_msgs": DEFAULT_MAX_MSGS,
    "limits.max_bytes": DEFAULT_MAX_BYTES,
    "file.compact_enabled": True,
    "file.compact_frag": 50,
    "file.compact_interval": 300,
    "file.compact_min_size": _MEGABYTE,
    "file.buffer_size": 2 * _MEGABYTE,
    "file.read_buffer_size": 2 * _MEGABYTE,
    "file.crc": True,
    "file.crc_poly": IEEE,
    "file.sync": True,
    "file.auto_sync": 60 * _SECOND,
    "file.slice_max_bytes": DEFAULT_SLICE_MAX_BYTES,
    "file.parallel_recovery": 1,
    "nats.host": "0.0.0.0",
    "nats.port": 4222,
    "nats.http_base_path": "/",
    "nats.max_connections": 65536,
    "nats.max_control_line": 4096,
    "nats.max_payload": _MEGABYTE,
    "nats.max_pending": 64 * _MEGABYTE,
    "nats.ping_interval": 120 * _SECOND,
    "nats.ping_max": 2,
    "nats.write_deadline": 10 * _SECOND,
    "nats.lame_duck_duration": 120 * _SECOND,
    "nats.lame_duck_grace_period": 10 * _SECOND,
    "log.timestamps": True,
}

#: Settings for which zero, or an empty text, stands for the default.
_ZERO_IS_DEFAULT: Final = frozenset(name for name in DEFAULTS if name.startswith("nats."))
#: Settings where the file wins over the command line.
_FILE_WINS: Final = frozenset(("cluster.peers", "encryption_key"))


@dataclass(slots=True)
class NatsFile:
    """What a file says about the NATS server.

    Attributes:
        settings: Setting to value; only what is there. Durations are nanoseconds.
        authorization: Who may connect; None if the file says nothing.
        tls: TLS for clients; None if the file says nothing.
        unavailable: What there is in the file that the server cannot do yet, for people.
        warnings: What the log should say at the start.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    authorization: Authorization | None = None
    tls: TLSOptions | None = None
    unavailable: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StreamingFile:
    """What a file says about streaming.

    Attributes:
        settings: Setting to value; only what is there. Durations are nanoseconds.
        channels: What names and patterns of channels set.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    channels: dict[str, PatternLimits] = field(default_factory=dict)


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
