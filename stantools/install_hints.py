"""How to install a missing package into the environment of this program.

The command names the packages themselves, so it works where no index has `stantools`.
"""

from __future__ import annotations

import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[\w.-]+")
_PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


def install_command(*packages: str) -> str:
    """Returns the command that installs packages for the running Python, in versions known to work."""
    known = dict(reversed([*_requirements()]))  # the first one counts: the others are for developers
    words = [known.get(_normalise(each), each) for each in packages]
    return f"{_installer()} {' '.join(map(shlex.quote, dict.fromkeys(words)))}"


def _installer() -> str:
    from importlib.util import find_spec

    python, prefix = shlex.quote(sys.executable), Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {shlex.quote(prefix.name)}"
    if find_spec("pip") is None:
        return f"uv pip install --python {python}"
    scripts = Path(sysconfig.get_path("scripts"))
    from shutil import which

    found = which("pip")
    return "pip install" if found and Path(found).parent == scripts else f"{python} -m pip install"


def _requirements() -> Iterator[tuple[str, str]]:
    """Yields the names of all requirements, optional ones included, each with its version range."""
    for line in _lines():
        requirement = line.partition(";")[0].strip()
        if name := _NAME.match(requirement):
            plain = re.sub(r"\s+|[()]", "", requirement)
            yield _normalise(name[0]), plain


def _lines() -> list[str]:
    from importlib import metadata  # loaded here: most runs need no installation

    try:
        return metadata.requires("stantools") or []
    except metadata.PackageNotFoundError:  # run from the source tree, not installed
        if not _PROJECT.exists():
            return []
    import tomllib

    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
