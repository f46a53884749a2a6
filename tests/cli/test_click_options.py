"""From declared options to the command line, and to the dataclass that takes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stantools.cli.click_options import GroupedCommand, folded, given, in_group, options_of
from stantools.notation import parse_size
from stantools.options import CHANNELS, COUNT, Option, declared, option


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Taken:
    patterns: tuple[str, ...] = CHANNELS.field()
    size: int = option("How big.", default=64 << 10, read=parse_size, written="64k")
    color: Color | None = option("Which.", choices=Color)
    case: str = option("Any case.", default="low", choices=("low", "high"), any_case=True, quiet=True)
    place: Path | None = option("Where.", "--at", kind=Path, metavar="DIR")
    some: int = COUNT.field(help="How many.", default=3)
    share: float = option("How much.", default=0.5, kind=float, least=0, most=1, above=True)
    quick: bool = option("Fast.", default=False)
    further: str = "further"
    hidden: list[int] = field(default_factory=list)


def run(*words: str, **options: object) -> tuple[Taken | None, str]:
    """What the command gets, and what is printed."""
    got: list[Taken] = []

    @click.command(cls=GroupedCommand)
    @options_of(Taken, "taken", given(further=Option(help="More.", default="x")), **options)  # type: ignore[arg-type]
    def command(taken: Taken) -> None:
        got.append(taken)

    result = CliRunner().invoke(command, words)
    return (got[0] if got else None), result.output


def test_what_is_not_given_is_the_declared_default() -> None:
    assert run()[0] == Taken(further="x")


def test_what_is_given() -> None:
    words = "--channel a --channel b.* --size 1MB --color blue --case HIGH --at /tmp --some 0 --share 1 --quick"
    taken, _ = run(*words.split(), "--further", "y")
    assert taken == Taken(("a", "b.*"), 1 << 20, Color.BLUE, "high", Path("/tmp"), 0, 1.0, True, "y")
    assert taken.color is Color.BLUE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "much"], "'much' is not a number of bytes"),
        (["--color", "green"], "is not one of"),
        (["--some", "-1"], "is not in the range"),
        (["--share", "0"], "is not in the range"),
    ],
)
def test_what_makes_no_sense(words: list[str], said: str) -> None:
    taken, text = run(*words)
    assert taken is None and said in text


def test_help() -> None:
    text = " ".join(run("--help", title="What", quick="Faster.")[1].split())
    assert "What: --channel PATTERN Only channels that match" in text
    assert "[default: 64k]" in text and "--at DIR" in text and "Faster." in text and "[default: 3; x>=0]" in text
    assert "default: low" not in text


def test_what_is_not_offered_is_as_declared() -> None:
    taken, text = run("--size", "1", without=("size",))
    assert taken is None and "No such option" in text
    taken, _ = run(without=("size",))
    assert taken is not None and taken.size == 64 << 10


def test_an_option_is_otherwise_elsewhere() -> None:
    names = dict(declared(Taken))
    assert list(names)[:2] == ["patterns", "size"] and "further" not in names
    assert names["place"].flag("place") == "at" and names["patterns"].flag("patterns") == "channel"
    assert CHANNELS.like(help="Else.").help == "Else." != CHANNELS.help


def test_several_options_become_one_value() -> None:
    @click.command()
    @in_group("Sum", folded("total", lambda one, two: one + two, {"one": COUNT.like(default=1), "two": COUNT}))
    def command(total: int) -> None:
        click.echo(total)

    assert CliRunner().invoke(command, ["--two", "4"]).output == "5\n"
