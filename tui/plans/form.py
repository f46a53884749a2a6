"""Options of a command as a form, with the names and defaults of the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from stantools.errors import UsageError
from stantools.home import expanded
from stantools.options import Option, declared

_Taker = TypeVar("_Taker")

#: The choices of an option without a value.
NO, YES = "no", "yes"
FLAG: Final = (NO, YES)


class FieldError(UsageError):
    """The value of the field `name` is invalid; `remedy` says what the field accepts."""

    def __init__(self, name: str, message: str, remedy: str = "") -> None:
        super().__init__(f"--{name}: {message}", remedy)
        self.name = name


@dataclass
class FormField:
    name: str  #: name on the command line, without dashes
    help: str  #: purpose, in a sentence
    value: str = ""  #: current value
    default: str = ""  #: default of the command line
    #: Allowed values; any value if empty. `FLAG` for an option without a value.
    choices: tuple[str, ...] = ()
    many: bool = False  #: several words, separated by blanks; each becomes an option of its own
    parse: Callable[[str], Any] = field(default=str)  #: converts the text; raises ValueError or one of our errors

    @property
    def is_flag(self) -> bool:
        return self.choices == FLAG

    def words(self) -> Iterator[str]:
        value = self.value.strip()
        if self.is_flag:
            if value == YES:
                yield f"--{self.name}"
        elif self.many:
            for word in value.split():
                yield from (f"--{self.name}", word)
        elif value != self.default:
            yield from (f"--{self.name}", value)


def field_of(name: str, option: Option, help: str, value: str | None = None) -> FormField:
    """Returns a field for a declared option with its name, default, choices and parser.

    `help` is the text for the form; `value` is the first value, by default the default of the option.
    """
    flag, default = option.flag(name), option.written or ("" if option.default in (None, ()) else str(option.default))
    choices = tuple(map(str, option.choices))
    of_them = option.choices if isinstance(option.choices, type) else _KINDS.get(option.kind, str)
    parse = option.read or of_them
    if option.default is False:
        default, choices = NO, FLAG
    elif option.default is None:
        parse = optional(parse)
    if option.least is not None and option.most is not None and option.most - option.least < _FEW:
        choices = tuple(map(str, range(int(option.least), int(option.most) + 1)))
    if choices and not default:
        choices = ("", *choices)
    value = default if value is None else value
    return FormField(flag, help, value, default, choices, many=option.default == (), parse=parse)


def fields_of(taker: type, **helps: str) -> Iterator[FormField]:
    """Yields the fields for a dataclass of options; `helps` gives their order and texts."""
    options = dict(declared(taker))
    return (field_of(name, options[name], help) for name, help in helps.items())


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a parser that maps empty texts to None."""
    return lambda text: parse(text) if text else None


def path(text: str) -> Path:
    try:
        return expanded(text)
    except UsageError as problem:
        raise ValueError(problem.message) from problem


def whole_number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{text!r} is not a number")
    return int(text)


_KINDS: dict[type, Callable[[str], Any]] = {Path: path, int: whole_number}
#: Up to this many numbers become a list of choices instead of a text field.
_FEW = 9


class OptionForm:
    """The fields of a form, in the order of the screen."""

    def __init__(self, *fields: FormField) -> None:
        self.fields = {each.name: each for each in fields}

    def __iter__(self) -> Iterator[FormField]:
        return iter(self.fields.values())

    def text(self, name: str) -> str:
        return self.fields[name].value.strip()

    def flag(self, name: str) -> bool:
        return self.fields[name].value == YES

    def words_of(self, name: str) -> tuple[str, ...]:
        return tuple(self.fields[name].value.split())

    def value(self, name: str) -> Any:
        each = self.fields[name]
        try:
            return each.parse(self.text(name))
        except ValueError as problem:
            raise FieldError(name, str(problem), each.help) from problem
        except UsageError as problem:
            raise FieldError(name, problem.message, problem.remedy) from problem

    def needed(self, name: str, reason: str) -> Any:
        if not self.text(name):
            raise FieldError(name, reason, self.fields[name].help)
        return self.value(name)

    def taken(self, taker: type[_Taker], **others: Any) -> _Taker:
        """Returns a dataclass of options with the values of the fields; empty fields take the declared defaults.

        `others` are values that have no field, or override one. Raises `FieldError`.
        """
        values: dict[str, Any] = {}
        for name, option in declared(taker):
            each = self.fields.get(option.flag(name))
            if name in others or each is None:
                continue
            if each.is_flag:
                values[name] = each.value == YES
            elif each.many:
                values[name] = self.words_of(each.name)
            elif self.text(each.name):
                values[name] = self.value(each.name)
        return taker(**values, **others)

    def words(self, *, without: Collection[str] = ()) -> list[str]:
        """Returns the words of the command line for all fields that differ from their defaults."""
        return [word for each in self if each.name not in without for word in each.words()]
