"""Options, each declared once: beside the field of the frozen dataclass that holds its value.

    archived: bool = ARCHIVED.field(help="Read .bak slices as well.")

The command line derives its options from such fields (`stantools.cli.click_options.options_of`) and passes the
dataclass on. Options that several verbs share are declared here. Nothing here imports numpy or click.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.notation import parse_duration, parse_polynomial, parse_range, parse_size, parse_time
from stantools.secret import Secret


@dataclass(frozen=True, kw_only=True)
class Option:
    help: str  #: a sentence on its effect
    default: Any = None  #: the default; False makes the option a flag, an empty tuple lets it be repeated
    flags: tuple[str, ...] = ()  #: names on the command line; the field's name if empty
    #: type of the value: `str`, `int`, `float`, `Path`, or `Secret` (a variable or a file is named, and `help` is a
    #: noun)
    kind: type = str
    #: Parses what `kind` cannot; raises ValueError with the problem.
    read: Callable[[str], Any] | None = None
    #: permitted words; for an enumeration, the value is a member
    choices: tuple[str, ...] | type[enum.StrEnum] = ()
    any_case: bool = False  #: the case of these words does not matter
    least: float | None = None  #: the minimum, included unless `above` is set
    most: float | None = None  #: the maximum
    above: bool = False  #: the value must exceed `least`
    metavar: str | None = None  #: placeholder of the value in help texts
    written: str | None = None  #: the default as users write it, if it differs from the default's own text
    variable: str = ""  #: environment variable that provides the value if the option is not given
    quiet: bool = False  #: help texts do not name the default
    required: bool = False
    notes: tuple[str, str] = ("", "")  #: additions to the help texts of the variable and of the file of a `Secret`

    def flag(self, name: str) -> str:
        """Returns the name on the command line, without leading dashes, for a field's name."""
        return self.flags[0].lstrip("-") if self.flags else name.replace("_", "-")

    def like(self, **changes: Any) -> Option:
        """Returns a copy of the option with changed attributes."""
        return dataclasses.replace(self, **changes)

    def field(self, **changes: Any) -> Any:
        option = self.like(**changes)
        return dataclasses.field(default=option.default, metadata={Option: option})


def option(help: str, *flags: str, **more: Any) -> Any:
    """Returns a dataclass field with an option of its own; see `Option`."""
    return Option(help=help, flags=flags, **more).field()


def declared(taker: type) -> Iterator[tuple[str, Option]]:
    """Iterates over the options that a dataclass declares, with the names of their fields, in order."""
    for each in dataclasses.fields(taker):
        if option := each.metadata.get(Option):
            yield each.name, option


CHANNELS = Option(
    help="Only channels that match; * is one token, > the rest. May be repeated.",
    default=(),
    flags=("--channel",),
    metavar="PATTERN",
)
SEQUENCES = Option(
    help="Only these sequences, both ends included; negative ones count from the end: -10: is the last ten.",
    flags=("--seq",),
    read=parse_range,
    metavar="A:B",
)
SINCE = Option(help="Not older than this: RFC 3339, or an age such as 1d3h.", read=parse_time, metavar="TIME")
UNTIL = Option(help="Older than this: RFC 3339, or an age such as 1d3h.", read=parse_time, metavar="TIME")
ARCHIVED = Option(help="Read .bak slices as well.", default=False)
GENERATION = Option(
    help="If sequences restarted: older generations as separate channels, only the newest, or the Nth.",
    default="split",
    metavar="split|newest|N",
)
WORKERS = Option(help="Files to read in parallel.", default=2, kind=int, least=1, most=256, metavar="N")
OUT = Option(help="Where to write the new store.", kind=Path, metavar="NEW")
FORCE = Option(help="Continue even though a server seems to be using the store.", default=False)
ACCEPT_LOSS = Option(help="Continue even though the store is damaged and data is lost.", default=False)
CLUSTER_ID = Option(help="The server's cluster id.", metavar="ID")
DATA = Option(
    help="How to show payloads; text in tables and base64 elsewhere if not given.",
    choices=("base64", "text", "hex", "none"),
)
#: the environment variable of the server's own key option
SERVER_KEY_VARIABLE = "NATS_STREAMING_ENCRYPTION_KEY"
KEY = Option(
    help="the server's encryption key",
    default=Secret(),
    kind=Secret,
    notes=(f"; the server's own is {SERVER_KEY_VARIABLE}", "; a trailing line break is ignored"),
)
SQL_PASSWORD = Option(
    help="the password of a database",
    default=Secret(),
    kind=Secret,
    notes=("; otherwise ~/.pgpass or ~/.my.cnf", "; a trailing line break is ignored"),
)
SQL_DRIVER = Option(
    help="The server's -sql_driver, for a STORE written as its -sql_source; needed if the text does not tell.",
    choices=("mysql", "postgres"),
)
ACCEPT_UNREADABLE = Option(help="Continue without the files that this user is not permitted to read.", default=False)
CRC_POLY = Option(
    help="CRC polynomial, as in the server's -file_crc_poly: a number, ieee, castagnoli or koopman.",
    read=parse_polynomial,
    written="auto",
    metavar="N|NAME|auto",
)


@dataclass(frozen=True)
class ReadingOptions:
    """How files are read, as users say it."""

    crc_poly: int | None = CRC_POLY.field()
    storage: tuple[str, ...] = option(
        "An option of fsspec for stores at URLs. May be repeated.", default=(), metavar="KEY=VALUE"
    )
    no_crc: bool = option("Do not check CRCs, like a server with -file_crc=false.", default=False)
    encryption_key: Secret = KEY.field()
    accept_unreadable: bool = ACCEPT_UNREADABLE.field()
    sql_driver: str | None = SQL_DRIVER.field()
    sql_password: Secret = SQL_PASSWORD.field()


#: Kinds of values; a declaration adds its help text by `like` or `field`.
COUNT = Option(help="", kind=int, least=0, metavar="N")
SIZE = Option(help="", read=parse_size, metavar="SIZE")
AGE = Option(help="", read=parse_duration, metavar="AGE")


@dataclass(frozen=True)
class LimitOptions:
    """The server's limits of channels, as users set them; None if not set."""

    max_msgs: int | None = COUNT.field(help="The server's -mm; 0 is no limit.")
    max_bytes: int | None = SIZE.field(help="The server's -mb; 0 is no limit.")
    max_age: int | None = AGE.field(help="The server's -ma, such as 72h; 0s is no limit.")


@dataclass(frozen=True)
class SliceOptions:
    """The server's limits of slices, as users set them; None if not set."""

    slice_msgs: int | None = COUNT.field(help="Messages per slice; the server's option.")
    slice_bytes: int | None = SIZE.field(help="Bytes per slice; 64MB if no slice limit is given.")
    slice_age: int | None = AGE.field(help="Time span of a slice; the server's option.")


@dataclass(frozen=True)
class SampleOptions:
    """The content of a sample store, and its damage."""

    channels: int = COUNT.field(help="How many channels.", default=3)
    names: Sequence[str] = option("A channel by name; may be repeated.", "--name", default=(), metavar="CHANNEL")
    messages: int = COUNT.field(help="Messages in each channel.", default=100)
    size: int = SIZE.field(help="Bytes of a payload.", default=128)
    seed: int = option("The same seed makes the same store.", default=1, kind=int)
    cluster_id: str = CLUSTER_ID.field(default="test-cluster")
    no_subscriptions: bool = option("No clients and no subscriptions.", default=False)
    #: The last channel begins at sequence 101, has one gap that the server has filled and one that it has not.
    gaps: bool = option("Gaps in the sequences of the last channel.", default=False)
    #: Without slice limits, small channels have four slices, others slices of the server's 64 MiB.
    slice_msgs: int = COUNT.field(help="Messages per slice.", default=0)
    slice_bytes: int = SIZE.field(help="Bytes per slice.", default=0)
    polynomial: int | None = CRC_POLY.field(
        help="CRC polynomial.",
        flags=("--crc-poly",),
        default=parse_polynomial("ieee"),
        written="ieee",
        metavar="N|NAME",
    )
    encryption_key: Secret = KEY.field()
    cipher: str = option("How to encrypt.", default="AES", choices=("AES", "CHACHA"), any_case=True, quiet=True)
    #: Names of kinds of damage (`damage.DAMAGES`), applied in this order to the channels in turn.
    damage: Sequence[str] = option("Damage the store; may be repeated.", default=(), metavar="NAME")
