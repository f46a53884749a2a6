"""Meaning of a finding code or of a line of the server's log."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from stantools.escaping import fill_in
from stantools.inspection.brokerlog import BROKER_LINES, FATAL_LINES
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.jetstreamlog import STREAM_LINES, STREAM_WRAPPERS
from stantools.inspection.logformats import server_lines
from stantools.inspection.serverlog import LINES, WRAPPERS, LogLine

#: `[PID] 2026/11/21 03:00:00.123456 [ERR] STREAM: ` at the start of every line; older servers write STAN.
_PREFIX = re.compile(
    r"^\s*(?:\[\d+\]\s+)?(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s+)?(?:\[[A-Z]{3}\]\s+)?(?:ST(?:REAM|AN): )?"
)
_START = re.compile(r"^(?:Failed to start: |panic: )")


@dataclass(frozen=True)
class Explanation:
    subject: str  #: the code, or the explained part of the log line
    meaning: str
    cause: str = ""  #: usual cause; may be empty
    server: str = ""  #: behaviour of the real server; empty for log lines, whose `meaning` includes it
    remedy: str = ""  #: next step; may be empty
    codes: tuple[str, ...] = ()  #: related finding codes
    aside: bool = False  #: part of a description that says nothing about the store by itself

    def as_json(self) -> dict[str, Any]:
        values = {**asdict(self), "codes": list(self.codes)}
        del values["aside"]
        return values


def explain(text: str) -> list[Explanation]:
    """Explains a finding code, or a log line with or without its prefix, also as log collectors keep it.

    A code has one explanation. A log line has one for each level of the error, outermost first; only one of them has
    a remedy. The result is empty if the text is neither.
    """
    code = text.strip().lower()
    if entry := CATALOGUE.get(code):
        return [Explanation(code, entry.meaning, entry.cause, entry.server, entry.remedy)]
    return next(filter(None, map(_explain_line, server_lines(text))), [])


def _explain_line(text: str) -> list[Explanation]:
    whole = _PREFIX.sub("", text.strip())
    line = _START.sub("", whole)
    around = [(match, each) for each in (*WRAPPERS, *STREAM_WRAPPERS) if (match := each.pattern.search(line))]
    around.sort(key=lambda found: found[0].start())
    # After a wrapper comes the reason; otherwise the whole line may be one.
    rest = line[min(match.end() for match, _ in around) :] if around else line
    reason = next(
        ((match, each) for each in (*LINES, *STREAM_LINES, *BROKER_LINES) if (match := each.pattern.search(rest))), None
    )
    if not around and reason is None:
        reason = next(((match, each) for each in FATAL_LINES if (match := each.pattern.search(whole))), None)
    found = [*around, reason] if reason else around
    decisive = next((each for _, each in found if each.decides), reason[1] if reason else None)
    explained = [_explained(each, match) for match, each in found]
    if decisive is None:
        return explained
    return [
        one if each is decisive else replace(one, remedy="", codes=())
        for one, (_, each) in zip(explained, found, strict=True)
    ]


def explain_log(lines: Iterable[str]) -> list[Explanation]:
    """Explains each kind of line in a log once, in the order of the lines; mere descriptions are left out."""
    found: dict[tuple[str, str], Explanation] = {}
    for line in lines:
        for each in explain(line):
            if not each.aside:
                found.setdefault((each.subject, each.meaning), each)
    return list(found.values())


def similar_codes(text: str) -> list[str]:
    """Returns finding codes that resemble the text."""
    return difflib.get_close_matches(text.strip().lower(), CATALOGUE, n=3, cutoff=0.5)


def _explained(line: LogLine, match: re.Match[str]) -> Explanation:
    fields = {name: value or "" for name, value in match.groupdict().items()}
    meaning = line.meaning.format(**fields) if fields else line.meaning
    subject = match[0].removesuffix("(file: ").rstrip(" (:")
    channel = fields.get("channel", "").strip('"') or fields.get("place", "").rpartition(":")[0]
    names = {"CHANNEL": channel} if channel else {}
    meaning, remedy = fill_in(meaning, names), fill_in(line.remedy, names)
    return Explanation(subject, meaning, line.cause, "", remedy, line.codes, line.aside)
