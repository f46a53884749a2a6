"""What a finding code or a line of the server's log means."""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass
from typing import Any

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.serverlog import LINES, WRAPPERS, LogLine

#: `[PID] 2026/11/21 03:00:00.123456 [ERR] STREAM: ` in front of every line; older servers say STAN.
_PREFIX = re.compile(
    r"^\s*(?:\[\d+\]\s+)?(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s+)?(?:\[[A-Z]{3}\]\s+)?(?:ST(?:REAM|AN): )?"
)
_START = re.compile(r"^(?:Failed to start: |panic: )")


@dataclass(frozen=True)
class Explanation:
    """What something means.

    Attributes:
        subject: The code, or the part of the log line that is explained.
        meaning: What happened or was found.
        cause: How it usually comes about; may be empty.
        server: What the real server does with it; empty for log lines, which say so in `meaning`.
        remedy: What to do next; may be empty.
        codes: Related finding codes.
    """

    subject: str
    meaning: str
    cause: str = ""
    server: str = ""
    remedy: str = ""
    codes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the explanation for json output."""
        return {**asdict(self), "codes": list(self.codes)}


def explain(text: str) -> list[Explanation]:
    """Explains a finding code or a log line.

    Args:
        text: A code of the catalogue, or a line as it stands in the server's log, with or without its prefix.

    Returns:
        One explanation for a code. For a log line one for each level of the error, outermost first. Empty if it is
        neither.
    """
    code = text.strip().lower()
    if entry := CATALOGUE.get(code):
        return [Explanation(code, entry.meaning, entry.cause, entry.server, entry.remedy)]
    line = _START.sub("", _PREFIX.sub("", text.strip()))
    found = []
    covered = len(line)
    for candidate in WRAPPERS:
        if match := candidate.pattern.search(line):
            found.append((match.start(), _explained(candidate, match)))
            covered = min(covered, match.end())
    # Within a wrapper the reason follows behind it; otherwise the whole line may be one.
    rest = line[covered:] if found else line
    for candidate in LINES:
        if match := candidate.pattern.search(rest):
            found.append((len(line), _explained(candidate, match)))
            break
    return [explanation for _, explanation in sorted(found, key=lambda each: each[0])]


def similar_codes(text: str) -> list[str]:
    """Returns finding codes that look like what was asked for."""
    return difflib.get_close_matches(text.strip().lower(), CATALOGUE, n=3, cutoff=0.5)


def _explained(line: LogLine, match: re.Match[str]) -> Explanation:
    fields = {name: value or "" for name, value in match.groupdict().items()}
    meaning = line.meaning.format(**fields) if fields else line.meaning
    subject = match[0].removesuffix("(file: ").rstrip(" (:")
    return Explanation(subject, meaning, line.cause, "", line.remedy, line.codes)
