"""What every wizard has: a form, a plan that is made of it, and how that is carried out."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from stantools.errors import StantoolsError
from stantools.format.crc import IEEE, Crc
from stantools.nats.options import ConnectOptions
from stantools.store.directory import Datastore, open_datastore
from stantools.store.era import refuse_0_1
from stantools.store.locks import check_not_in_use
from stantools.store.options import ReadOptions
from tui.cells import name_text, store_name
from tui.jobs import Job
from tui.plans.account import Outcome, Preview, Remark
from tui.plans.form import Form


@dataclass(frozen=True)
class Source:
    """The store that a plan is about.

    Attributes:
        path: Its directory, as the user wrote it.
        crc: Its CRC.
        reading: How it is read.
        workers: Files that are read at the same time.
        connecting: How to reach a NATS server, if the user has said so.
    """

    path: Path
    crc: Crc
    reading: ReadOptions = field(default_factory=ReadOptions)
    workers: int = 2
    connecting: ConnectOptions | None = None

    @property
    def name(self) -> str:
        """The name of its directory, which has to be typed before anything is written."""
        return store_name(self.path)

    @property
    def _whole(self) -> Path:
        return self.path if self.path.name not in ("", "..") else self.path.resolve()

    def open(self) -> Datastore:
        """Lists the store as it is now.

        Raises:
            StoreUnreadableError: It is no store any more.
        """
        store = open_datastore(self.path)
        refuse_0_1(store)
        return store

    def beside(self, suffix: str, *, new: bool = True) -> str:
        """Returns a path beside the store: the store's with a suffix; "" if it could not be typed.

        Args:
            suffix: The suffix.
            new: Nothing may be there yet: then a number follows if need be.
        """
        place = self._whole
        if not os.fspath(place).isprintable():
            return ""  # cannot be typed, so it is not suggested
        candidate, number = place.with_name(f"{place.name}{suffix}"), 1
        while new and os.path.lexists(candidate):
            number += 1
            candidate = place.with_name(f"{place.name}{suffix}-{number}")
        return os.fspath(candidate)

    def reading_words(self, *, unchecked: bool = False) -> list[str]:
        """Returns the options of the command line for how the store is read.

        Args:
            unchecked: The verb has --no-crc.
        """
        words = []
        if self.reading.polynomial is not None and self.reading.polynomial != IEEE:
            words += ["--crc-poly", str(self.reading.polynomial)]
        if unchecked and not self.reading.check_crc:
            words.append("--no-crc")
        return words


class Wizard(ABC):
    """Something that can be done with a store.

    Args:
        source: The store.

    Attributes:
        form: What can be chosen.
    """

    #: The verb of the command line.
    VERB: ClassVar[str]
    #: What is counted while it runs: bytes or messages.
    UNIT: ClassVar[str] = "bytes"

    form: Form

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def changes_store(self) -> bool:
        """The store itself is changed, instead of something new being written."""
        return False

    def command(self) -> list[str]:
        """Returns the command line that does the same."""
        return ["stantools", self.VERB, os.fspath(self.source.path), *self.form.words(), *self.source.reading_words()]

    @abstractmethod
    def preview(self, job: Job[Preview]) -> Preview:
        """Makes the plan; only reads.

        Args:
            job: Told how far it is.

        Raises:
            StantoolsError: There is no plan.
        """

    @abstractmethod
    def question(self) -> str:
        """Says what is going to be done, in a sentence, once there is a plan."""

    @abstractmethod
    def run(self, job: Job[Outcome]) -> Outcome:
        """Carries out the plan of the last preview.

        Args:
            job: Told how far it is. Where it is cancelled, everything is as it was before, or as `cancelled` says.

        Raises:
            StantoolsError: It could not be done.
        """

    def cancelled(self) -> str:
        """Says what is left when a run was cancelled."""
        return f"nothing was written; {name_text(os.fspath(self.source.path))} is as it was"


def look_for_uses(source: Source, preview: Preview, *, force: bool, warning: str) -> None:
    """Adds what a server that is using the store means.

    Args:
        source: The store.
        preview: What is added to.
        force: Go on all the same.
        warning: What may happen then.
    """
    try:
        for use in check_not_in_use(source.path, force=force):
            preview.remarks.append(Remark("warning", f"{use.detail}: {warning}", "warn"))
    except StantoolsError as problem:
        preview.obstacles.append(problem)


def attempt(preview: Preview, *checks: object) -> None:
    """Makes checks, and adds what they raise to the obstacles; each is a function without arguments."""
    for check in checks:
        try:
            check()  # type: ignore[operator]
        except StantoolsError as problem:
            if all(problem.message != each.message for each in preview.obstacles):
                preview.obstacles.append(problem)


def words_of(texts: Sequence[str], word: str) -> list[Remark]:
    """Returns texts as remarks of one kind."""
    return [Remark(word, text) for text in texts]
