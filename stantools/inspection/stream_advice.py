"""The safe steps with a JetStream directory: a copy first, then a new directory with everything that is intact."""

from __future__ import annotations

from typing import Final

from stantools.escaping import beside, escape
from stantools.inspection.report import NextStep, command_line
from stantools.notation import some_of
from stantools.sources.source import Source

_NAMED: Final = 3


def safe_step(source: Source, text: str) -> NextStep:
    """Returns the step that `text` names, with its commands; for streams that are locked, the one that opens them."""
    if locked := [each for each in source.streams if each.locked]:
        named = some_of([escape(each.full_name) for each in locked], _NAMED)
        reason = f"nothing of {named} can be judged, as {locked[0].locked}: copy first, and find the key"
        command = command_line("stantools", "doctor", str((source.members or (source,))[0].path))
        return NextStep(
            reason[0].upper() + reason[1:], [*_copies(source), f"{command} --encryption-key-file <key-file>"]
        )
    return NextStep(text, safe_commands(source))


def safe_commands(source: Source) -> list[str]:
    """Returns the commands that copy a directory, unless it is in an archive, and write what is intact to a new one.

    Nodes that were given one by one are copied one by one, and merged.
    """
    places = [each.path for each in source.members or (source,)]
    verb, result = ("merge", "merged") if len(places) > 1 else ("salvage", "salvaged")
    new = str(beside(places[0], result))
    key = source.read_options.key_words if any(each.encrypted for each in source.streams) else ()
    return [*_copies(source), command_line("stantools", verb, *map(str, places), "--out", new, *key)]


def _copies(source: Source) -> list[str]:
    places = [each.path for each in source.members or (source,)]
    return [command_line("cp", "-a", str(each), str(beside(each, "copy"))) for each in places if not source.archived]
