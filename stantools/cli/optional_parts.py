"""Optional parts of the installation, and their packages.

pyproject.toml alone lists the packages of a part; they are read from the metadata of the installed program.
"""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from stantools import __version__
from stantools.install_hints import install_command

#: purpose of each part
PARTS = {
    "jetstream": "--server embedded",
    "arrow": "export, except of messages as csv or ndjson; stats",
    "duckdb": "export to DuckDB",
    "snappy": "migrate --compress",
    "zstd": "archives of stores with zstd",
    "sql": "SQL stores in live databases",
    "spark": "--engine spark, with Java 17 or 21",
}
_REQUIREMENT = re.compile(r"([\w.-]+).*;.*\bextra == ['\"](\w+)['\"]")


@dataclass(frozen=True)
class OptionalPart:
    """An optional part: name, purpose, and versions of its packages (None: missing)."""

    name: str
    purpose: str
    packages: dict[str, str | None]

    @property
    def complete(self) -> bool:
        return None not in self.packages.values()


def parts() -> Iterator[OptionalPart]:
    needed: dict[str, dict[str, str | None]] = {name: {} for name in PARTS}
    for line in metadata.requires("stantools") or ():
        found = _REQUIREMENT.match(line)
        if found and found[2] in needed:
            part, package = found[2], found[1]
            needed[part][package] = None
            with suppress(metadata.PackageNotFoundError):
                needed[part][package] = metadata.version(package)
    for name, packages in needed.items():
        yield OptionalPart(name, PARTS[name], packages)


def describe() -> str:
    from stantools.cli.output import table_text
    from stantools.inspection.report import columns

    rows, found = [], list(parts())
    for part in found:
        there = ", ".join(f"{name} {version}" for name, version in part.packages.items() if version)
        missing = f"missing: {', '.join(name for name, version in part.packages.items() if not version)}"
        rows.append((part.name, part.purpose, there if part.complete else missing))
    head = f"stantools {__version__}, Python {platform.python_version()}"
    lines = [head, "", table_text(columns("part", "for", "installed", fold=("installed",)), rows).rstrip()]
    lacking = [name for part in found for name, version in part.packages.items() if not version]
    if lacking:
        lines += ["", f"to install the missing packages: {install_command(*lacking)}"]
    return "\n".join(lines)
