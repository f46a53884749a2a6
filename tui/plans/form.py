"""Options as a form: the names are those of the command line, and so is what is taken if nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from stantools.errors import UsageError
from stantools.options import Option, declared

_Taker = TypeVar("_Taker")

#: The choices of an option that takes no value.
NO, YES = "no", "yes"
FLAG: Final = (NO, YES)


class FieldError(UsageError):
    """A field does not make sense.

    Args:
        name: The field.
        message: What is wrong with it.
        remedy: What it may hold.
    """

    def __init__(self, name: str, message: str, remedy: str = "") -> None:
        super().__init__(f"--{name}: {message}", remedy)
        self.name = name


@dataclass
class Field:
    """An option."""

    name: str  #: as on the command line, without the dashes
    help: str  #: what it does, in a sentence
    value: str = ""  #: what it holds now
    default: str = ""  #: what the command line takes if it is not given
    #: What it may hold; anything, if there are none. `FLAG` for an option without a value.
    choices: tuple[str, ...] = ()
    many: bool = False  #: several words may be given, with blanks in between; each becomes an option of its own
    parse: Callable[[str], Any] = field(default=str)  #: reads the text; raises ValueError or an error of ours

    @property
    def is_flag(self) -> bool:
        """It takes no value on the command line."""
        return self.choices == FLAG

    def words(self) -> Iterator[str]:
        """Yields what would be typed for it."""
        value = self.value.strip()
        if self.is_flag:
            if value == YES:
                yield f"--{self.name}"
        elif self.many:
            for word in value.split():
                yield from (f"--{self.name}", word)
        elif value != self.default:
            yield from (f"--{self.name}", value)


def field_of(name: str, option: Option, help: str, value: str | None = None) -> Field:
    """Returns a field for an option as it is declared: its name, default, choices and what it may hold.

    Args:
        name: What the option is the field of.
        option: The option.
        help: What it does, for who fills in a form.
        value: What it holds at first; the default if not given.
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
    return Field(flag, help, value, default, choices, many=option.default == (), parse=parse)


def fields_of(taker: type, **helps: str) -> Iterator[Field]:
    """Iterates over fields for options that a dataclass declares.

    Args:
        taker: The dataclass.
        helps: Its fields in the order in which they are shown, and what they do, for who fills in a form.
    """
    options = dict(declared(taker))
    return (field_of(name, options[name], help) for name, help in helps.items())


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns what reads a text, and returns None where there is none."""
    return lambda text: parse(text) if text else None


def path(text: str) -> Path:
    """Reads a path; `~` is the home directory."""
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        raise ValueError(str(problem)) from problem


def whole_number(text: str) -> int:
    """Reads a number that is not negative."""
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{text!r} is not a number")
    return int(text)


_KINDS: dict[type, Callable[[str], Any]] = {Path: path, int: whole_number}
#: Of so many numbers one is chosen, instead of being typed.
_FEW = 9


class Form:
    """Some options with their values.

    Args:
        fields: The options, in the order in which they are shown.
    """

    def __init__(self, *fields: Field) -> None:
        self.fields = {each.name: each for each in fields}

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields.values())

    def text(self, name: str) -> str:
        """Returns what a field holds, without blanks around it."""
        return self.fields[name].value.strip()

    def flag(self, name: str) -> bool:
        """Returns whether an option without a value is given."""
        return self.fields[name].value == YES

    def words_of(self, name: str) -> tuple[str, ...]:
        """Returns the words of a field that takes several."""
        return tuple(self.fields[name].value.split())

    def value(self, name: str) -> Any:
        """Reads a field.

        Raises:
            FieldError: It does not make sense.
        """
        each = self.fields[name]
        try:
            return each.parse(self.text(name))
        except ValueError as problem:
            raise FieldError(name, str(problem), each.help) from problem
        except UsageError as problem:
            raise FieldError(name, problem.message, problem.remedy) from problem

    def needed(self, name: str, why: str) -> Any:
        """Reads a field that must not be empty.

        Raises:
            FieldError: It is, or does not make sense.
        """
        if not self.text(name):
            raise FieldError(name, why, self.fields[name].help)
        return self.value(name)

    def taken(self, taker: type[_Taker], **others: Any) -> _Taker:
        """Returns a dataclass of options with what the fields hold, and the declared default for what is empty.

        Args:
            taker: The dataclass.
            others: What is in no field, or otherwise than there.

        Raises:
            FieldError: A field does not make sense.
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
        """Returns what would be typed on the command line for what is not as it is anyway."""
        return [word for each in self if each.name not in without for word in each.words()]
