"""Options of the streaming server and of its NATS server, each declared once: beside the field that holds its value.

    max_msgs: int = server_field(INT, "Messages of a channel", "mm max_msgs", "mm max_msgs maxmsgs", 1_000_000)

A declaration has the names on the command line and in configuration files, the type that is written there, its default,
limits and help. The broker's command line, the reader of its files, the help text and the documentation use it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stantools.notation import format_go_duration
from stantools.options import Option

_SECOND: Final = 1e9
_MB: Final = 1 << 20


class Support(enum.StrEnum):
    WORKS = "works"
    #: the server does not start and says why, with exit code 2
    UNAVAILABLE = "not available yet"
    WARNED = "accepted without effect, with a warning"
    #: has no meaning here
    NOT_NEEDED = "accepted, not needed"
    IGNORED = "ignored, as in the original"


class ValueType(enum.StrEnum):
    """Types of values in files; those with a name in error texts have it as value."""

    STRING = "string"
    BOOL = "bool"
    INT = "int64"
    DURATION = "duration"  #: text, such as `1h30m`; nanoseconds
    SIZE = "size"  #: bytes; on the command line checked after other types (server-operations.md section 10)
    MAP = "map"
    LIST = "slice"  #: of strings
    WORDS = "words"  #: a string, or a list of strings
    ADDRESS = "address"  #: a port, or `host:port`
    SECONDS = "seconds"  #: a number, or a duration; seconds
    ANY = "any"


STRING, BOOL, INT = ValueType.STRING, ValueType.BOOL, ValueType.INT
DURATION, SIZE, SECONDS = ValueType.DURATION, ValueType.SIZE, ValueType.SECONDS
MAP, LIST, WORDS, ADDRESS, ANY = ValueType.MAP, ValueType.LIST, ValueType.WORDS, ValueType.ADDRESS, ValueType.ANY
_ZEROS: Final[dict[ValueType, Any]] = {STRING: "", BOOL: False, INT: 0, DURATION: 0, SIZE: 0, LIST: (), WORDS: ()}


@dataclass(frozen=True, kw_only=True)
class ServerOption(Option):
    """An option of the command line, a key of a configuration file, or both; `flags` have no dashes."""

    value_type: ValueType
    keys: tuple[str, ...] = ()  #: names in files, in lower case
    #: makes the field's value from a setting: text, number, nanoseconds
    convert: Callable[[Any], Any] | None = None
    problem: str = ""  #: error text for a value below `least` or above `most`
    support: Support = Support.WORKS
    remark: str = ""

    def check(self, value: object) -> str:
        """Returns the problem of a setting, "" without one."""
        if not isinstance(value, int) or isinstance(value, bool):
            return ""
        wrong = (self.least is not None and value < self.least) or (self.most is not None and value > self.most)
        return self.problem if wrong else ""

    def of(self, setting: Any) -> Any:
        """Returns the field's value for a setting; None is the default."""
        if setting is None:
            setting = _ZEROS.get(self.value_type) if self.default is None else self.default
        return self.convert(setting) if self.convert else setting

    @property
    def shown_default(self) -> str:
        """The default for people, "" without one."""
        value = self.default
        match self.value_type:
            case ValueType.BOOL:
                return "true" if value else "false"
            case ValueType.DURATION:
                return format_go_duration(int(value or 0))
            case ValueType.SIZE if isinstance(value, int):
                return f"{value / _MB:.2f}".rstrip("0").rstrip(".") + "MB"
            case ValueType.INT | ValueType.SIZE:
                return str(value or 0)
        return str(value or "")


def server_option(
    value_type: ValueType, help: str, flags: str = "", keys: str = "", default: Any = None, **more: Any
) -> ServerOption:
    return ServerOption(
        value_type=value_type,
        help=help,
        flags=tuple(flags.split()),
        keys=tuple(keys.split()),
        default=default,
        **more,
    )


def server_field(
    value_type: ValueType,
    help: str,
    flags: str = "",
    keys: str = "",
    default: Any = None,
    *,
    repr: bool = True,
    **more: Any,
) -> Any:
    """Returns a dataclass field with an option of its own; see `ServerOption`."""
    option = server_option(value_type, help, flags, keys, default, **more)
    return dataclasses.field(default=option.of(None), repr=repr, metadata={Option: option})


# Conversions of settings into values of fields.


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_path(text: str) -> Path | None:
    return Path(text) if text else None


def as_seconds(nanoseconds: int) -> float:
    return nanoseconds / _SECOND


def not_negative(number: int) -> int:
    return max(number, 0)
