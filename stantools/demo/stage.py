"""What a demonstration prints: titles, commands and their exit codes, in order with what the commands print."""

from __future__ import annotations

import itertools
import subprocess
import sys

from stantools.errors import StantoolsError

_numbers = itertools.count(1)


class DemoFailedError(StantoolsError):
    """A step did not end as it should."""


def title(text: str) -> None:
    """Begins the next step: steps are numbered as they come, since some are skipped."""
    say(f"\n=== {next(_numbers)}. {text}\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(verb: str, *arguments: object, expect: int = 0) -> None:
    """Shows a command and runs it. Raises `DemoFailedError` for another exit code than expected."""
    words = [verb, *map(str, arguments)]
    say(f"$ stantools {' '.join(words)}")
    code = subprocess.run([sys.executable, "-m", "stantools", *words], stderr=subprocess.STDOUT, check=False).returncode
    say(f"(exit code {code})\n")
    if code != expect:
        raise DemoFailedError(f"exit code {code} where {expect} was expected")
