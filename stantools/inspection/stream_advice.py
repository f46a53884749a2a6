"""The safe steps with a JetStream directory: a copy first, then a new directory with everything that is intact."""

from __future__ import annotations

from stantools.escaping import beside
from stantools.inspection.report import command_line
from stantools.sources.source import Source


def safe_commands(source: Source) -> list[str]:
    """Returns the commands that copy a directory, unless it is in an archive, and write what is intact to a new one.

    Nodes that were given one by one are copied one by one, and merged.
    """
    places = [each.path for each in source.members or (source,)]
    copies = [command_line("cp", "-a", str(each), str(beside(each, "copy"))) for each in places if not source.archived]
    verb, result = ("merge", "merged") if len(places) > 1 else ("salvage", "salvaged")
    new = str(beside(places[0], result))
    return [*copies, command_line("stantools", verb, *map(str, places), "--out", new)]
