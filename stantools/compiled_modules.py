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
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

#: The environment variable for the sources instead of the objects.
INTERPRETED: Final = "STANTOOLS_INTERPRETED"
#: The shared library of all compiled modules.
LIBRARY: Final = "stantools.compiled"
_ROOT: Final = Path(__file__).parents[1]


def record(root: Path = _ROOT) -> Path:
    """Returns the path of the record: lines with the hash of a source and the name of its module."""
    return root / "stantools" / f"compiled.{sys.implementation.cache_tag}.txt"


def write_record(root: Path, modules: Sequence[str]) -> None:
    lines = [f"{_hash(_source(_ROOT, module))} {module}\n" for module in modules]
    record(root).write_text("".join(lines))


def check() -> None:
    """Ends the process if the objects are not those of the sources."""
    try:
        lines = record().read_text().splitlines()
    except FileNotFoundError:
        if not (_ROOT / f"{LIBRARY.replace('.', '/')}__mypyc{EXTENSION_SUFFIXES[0]}").exists():
            return
        lines = []
    recorded = dict(reversed(line.split()) for line in lines)
    if os.environ.get(INTERPRETED):
        sys.meta_path.insert(0, _Sources(recorded))
        return
    changed = [module for module, hash in recorded.items() if _hash(_source(_ROOT, module)) != hash]
    if changed or not recorded:
        what = f"{_source(Path(), changed[0])} has changed since it was compiled" if changed else "a build was cut off"
        sys.exit(f"stantools: {what}; run `make compiled`, or set {INTERPRETED}=1 to run the sources")


def compiled() -> bool:
    """Returns whether the modules are loaded as objects."""
    return record().exists() and not os.environ.get(INTERPRETED)


def _source(root: Path, module: str) -> Path:
    return root / f"{module.replace('.', '/')}.py"


def _hash(source: Path) -> str:
    try:
        return importlib.util.source_hash(source.read_bytes()).hex()
    except FileNotFoundError:
        return "missing"


class _Sources:
    """Finds the sources of compiled modules."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        return importlib.util.spec_from_file_location(name, _source(_ROOT, name))
