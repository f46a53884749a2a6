"""The command line: given options and their values (server-operations.md sections 2 to 4 and 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.config.catalogue import FLAGS, NamedOption, Setting
from broker.config.values import ConfigurationError, parse_go_duration, text
from stantools.errors import StantoolsError
from stantools.format.quoting import quote
from stantools.server_options import ValueType

_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))
#: an underscore may stand between two digits, or after the base
_INTEGER: Final = re.compile(r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO](_?[0-7])+|0(_?[0-7])*|[1-9](_?[0-9])*)")
_MAX_DIGITS: Final = 80
#: options that stand for several others
_COMBINED: Final[Mapping[str, tuple[str, ...]]] = {
    "SDV": ("log.streaming_debug", "log.streaming_trace"),
    "VV": ("log.nats_trace", "nats.trace_verbose"),
    "DV": ("log.nats_debug", "log.nats_trace"),
    "DVV": ("log.nats_debug", "log.nats_trace", "nats.trace_verbose"),
}


class FlagError(StantoolsError):
    """An unknown option or a bad value: answered by the text and the overview, with exit code 0."""


@dataclass(slots=True)
class CommandLine:
    #: setting -> value of the given options; sizes are texts until `sizes`
    settings: dict[str, Setting] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  #: setting -> name of the option that set it
    rest: tuple[str, ...] = ()  #: arguments after the options

    def sizes(self) -> None:
        for to, name in sorted(self.names.items(), key=lambda item: item[1]):
            if FLAGS[name].option.value_type is ValueType.SIZE:
                self.settings[to] = parse_size(name, str(self.settings[to]))


def parse_flags(argv: Sequence[str]) -> CommandLine:
    """Parses the arguments after the program's name."""
    found = CommandLine()
    arguments = list(argv)
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if len(argument) < 2 or not argument.startswith("-"):
            break
        position += 1
        if argument == "--":
            break
        name, separator, value = argument.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {argument}")
        flag = FLAGS.get(name)
        if flag is None:
            raise FlagError(f"flag provided but not defined: -{name}", _similar(name))
        if flag.option.value_type is ValueType.BOOL:
            if separator and value not in _TRUE and value not in _FALSE:
                raise FlagError(f"invalid boolean value {quote(value)} for -{name}: parse error")
            _set(found, flag, name, not separator or value in _TRUE)
            continue
        if not separator:
            if position == len(arguments):
                raise FlagError(f"flag needs an argument: -{name}")
            value = arguments[position]
            position += 1
        _set(found, flag, name, _value(flag, name, value))
    found.rest = tuple(arguments[position:])
    return found


def _similar(name: str) -> str:
    import difflib

    alike = difflib.get_close_matches(name, FLAGS, 1) if len(name) > 1 else []
    return f"did you mean -{alike[0]}?" if alike else ""


def parse_size(name: str, value: str) -> int:
    """Parses a size as in a file: an integer, optionally with a suffix (`10MB`)."""
    from broker.config import grammar

    try:
        parsed = grammar.parse(f"{_SIZE}: {value}" if value.strip() else "", environ={})[_SIZE].value
    except (ConfigurationError, KeyError):
        parsed = value
    if not isinstance(parsed, int) or isinstance(parsed, bool):
        raise ConfigurationError(f"{name} should be a size, got '{text(parsed)}'")
    return parsed


_SIZE: Final = "size"


def _set(found: CommandLine, flag: NamedOption, name: str, value: Setting) -> None:
    found.names[flag.setting] = name
    found.settings[flag.setting] = value
    for each in _COMBINED.get(flag.setting, ()):
        found.settings[each] = value
        found.names.setdefault(each, name)


def _value(flag: NamedOption, name: str, value: str) -> Setting:
    if flag.option.value_type is ValueType.INT:
        return _integer(name, value)
    if flag.option.value_type is ValueType.LIST:
        return tuple(each.strip() for each in value.split(",") if each.strip())
    if flag.option.value_type is ValueType.DURATION:
        try:
            return parse_go_duration(value)
        except ConfigurationError:
            raise FlagError(f"invalid value {quote(value)} for flag -{name}: parse error") from None
    return value


def _integer(name: str, value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise FlagError(f"invalid value {quote(value)} for flag -{name}: parse error")
    digits = value.lstrip("+-").replace("_", "")
    if len(digits) > _MAX_DIGITS:
        raise FlagError(f"invalid value {quote(value)} for flag -{name}: value out of range")
    base = {"x": 16, "b": 2, "o": 8}.get(digits[1:2].lower())
    number = int(digits[2:], base) if base else int(digits, 8 if digits.startswith("0") else 10)
    if value.startswith("-"):
        number = -number
    if not -(1 << 63) <= number < 1 << 63:
        raise FlagError(f"invalid value {quote(value)} for flag -{name}: value out of range")
    return number
