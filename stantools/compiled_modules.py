"""Modules that are compiled (setup.py names them), and the check that they are those of the sources beside them.

Python prefers an object to the source beside it, also after a change of the source. So each build writes a record
with a hash of each source, and the packages with compiled modules compare the hashes before they load any. All modules
are in one library and know each other's layout: either all are loaded as objects or all from their sources, as with
the environment variable STANTOOLS_INTERPRETED.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

#: The environment variable for the sources instead of the objects.
INTERPRETED: Final = "STANTOOLS_INTERPRETED"
#: The shared library of all compiled modules.
LIBRARY: Final = "stantools.compiled"
_ROOT: Final = Path(__file__).parents[1]


def record(root: Path) -> Path:
    """Returns the path of the record: lines with the hash of a source and the name of its module."""
    return root / "stantools" / f"compiled.{sys.implementation.cache_tag}.txt"


def hashes(modules: Sequence[str]) -> dict[str, str]:
    return {module: _hash(_source(_ROOT, module)) for module in modules}


def write_record(root: Path, sources: dict[str, str]) -> None:
    record(root).write_text("".join(f"{hash} {module}\n" for module, hash in sources.items()))


@cache
def check() -> None:
    """Ends the process if the objects are not those of the sources."""
    if os.environ.get(INTERPRETED):
        sys.meta_path.insert(0, _SourceFinder())
        return
    try:
        lines = record(_ROOT).read_text().splitlines()
    except FileNotFoundError:
        if (_ROOT / f"{LIBRARY.replace('.', '/')}__mypyc{EXTENSION_SUFFIXES[0]}").exists():
            _refuse("a build was cut off")
        return
    recorded = {module: hash for hash, module in map(str.split, lines)}
    for module, hash in hashes(list(recorded)).items():
        if hash != recorded[module]:
            _refuse(f"{_source(Path(), module)} has changed since it was compiled")


def _refuse(problem: str) -> NoReturn:
    sys.exit(f"stantools: {problem}; run `make compiled`, or set {INTERPRETED}=1 to run the sources")


def _source(root: Path, module: str) -> Path:
    return root / f"{module.replace('.', '/')}.py"


def _hash(source: Path) -> str:
    try:
        return importlib.util.source_hash(source.read_bytes()).hex()
    except FileNotFoundError:
        return "missing"


class _SourceFinder:
    """Finds the sources of modules that have one."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        source = _source(_ROOT, name)
        if not name.startswith(("broker.", "stantools.")) or not source.exists():
            return None
        return importlib.util.spec_from_file_location(name, source)
