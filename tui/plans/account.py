"""What a wizard tells: of what would happen, and of what has happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import ExitCode, StantoolsError
from tui.cells import Cell, Role

#: Things of one kind that are told one by one; of more, only how many.
MANY = 200


@dataclass(frozen=True)
class Heading:
    """A column of a table.

    Attributes:
        title: Its heading.
        width: In characters; of a column that grows, the least.
        right: Aligned to the right.
        grows: Takes a share of what is left of the line.
    """

    title: str
    width: int
    right: bool = False
    grows: bool = False


@dataclass(frozen=True)
class Remark:
    """Something to be known, as a paragraph.

    Attributes:
        word: What kind of thing, at its beginning: "lost", "changed", "warning".
        text: What.
        role: How the word is meant.
    """

    word: str
    text: str
    role: Role = "dim"


@dataclass
class Account:
    """A table with what is to be known besides.

    Attributes:
        verdict: The most important, in a sentence.
        facts: What is counted or named: label and value.
        headings: Columns of the table.
        rows: Its rows.
        remarks: What cannot be a row.
    """

    verdict: Cell = ""
    facts: list[tuple[str, Cell]] = field(default_factory=list)
    headings: Sequence[Heading] = ()
    rows: Sequence[Sequence[Cell]] = ()
    remarks: list[Remark] = field(default_factory=list)

    def remark(self, remarks: Sequence[Remark], many: str) -> None:
        """Adds remarks, but no endless list.

        Args:
            remarks: All of them.
            many: What they are, where they are only counted: "more places".
        """
        self.remarks += remarks[:MANY]
        if len(remarks) > MANY:
            self.remarks.append(Remark("…", f"and {len(remarks) - MANY:,} {many}"))


@dataclass
class Preview(Account):
    """What would happen.

    Attributes:
        obstacles: Why it cannot be done as it was asked for.
        idle: Why there is nothing to do; "" if there is.
    """

    obstacles: list[StantoolsError] = field(default_factory=list)
    idle: str = ""


@dataclass
class Outcome(Account):
    """What has happened.

    Attributes:
        code: What the command line would have ended with.
        meaning: What that says.
        opens: A store that was written, to be opened.
        next_text: What to do next, in a sentence.
        next_command: The command line for that, if there is one.
        changed: The store that is open was changed.
    """

    code: ExitCode = ExitCode.CLEAN
    meaning: str = ""
    opens: Path | None = None
    next_text: str = ""
    next_command: Sequence[str] = ()
    changed: bool = False

    @property
    def role(self) -> Role:
        """How good it is."""
        return {ExitCode.CLEAN: "good", ExitCode.LOSS: "warn", ExitCode.INTERRUPTED: "warn"}.get(self.code, "bad")  # type: ignore[return-value]
