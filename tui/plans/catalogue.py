"""The wizards there are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from tui.plans.wizard import Source, Wizard


@dataclass(frozen=True)
class Entry:
    """A wizard that can be chosen.

    Attributes:
        verb: The verb of the command line.
        does: What it does, in a sentence.
        changes: What becomes of the store.
        module: Where it is; imported when it is chosen.
        name: Its class.
    """

    verb: str
    does: str
    changes: str
    module: str
    name: str

    def make(self, source: Source) -> Wizard:
        """Makes the wizard for a store."""
        wizard: Any = getattr(importlib.import_module(self.module), self.name)
        made: Wizard = wizard(source)
        return made


WIZARDS: tuple[Entry, ...] = (
    Entry("salvage", "a new store with every intact message", "only read", "tui.plans.salvage", "SalvageWizard"),
    Entry(
        "compact",
        "the same store without what is dead in it",
        "only read, or replaced and kept beside",
        "tui.plans.compact",
        "CompactWizard",
    ),
    Entry(
        "truncate-bad-eof",
        "the server's own repair: broken ends are cut off",
        "changed; what goes is saved before",
        "tui.plans.truncate",
        "TruncateWizard",
    ),
    Entry(
        "export",
        "messages, or another table, as Parquet, ndjson or csv",
        "only read",
        "tui.plans.export",
        "ExportWizard",
    ),
    Entry(
        "migrate",
        "channels into JetStream streams, durables into consumers",
        "only read",
        "tui.plans.migrate",
        "MigrateWizard",
    ),
)


def entry(verb: str | None) -> Entry | None:
    """Returns the wizard of a verb, if there is one."""
    return next((each for each in WIZARDS if each.verb == verb), None)
