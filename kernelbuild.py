"""The build backend (PEP 517): setuptools', which compiles the kernels with Zig where the machine has no C compiler.

The package `ziglang` carries a whole C compiler. It is asked for only where no other one is found; and mypy, which
brings mypyc, only where modules are compiled (`setup.py`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import shlex
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

#: The folder of the packages that Spark searches for data sources, and the file that puts it on Python's path.
ENTRY = Path(__file__).parent / "stantools" / "pipeline" / "spark" / "entry"
ENTRY_FILE = "__editable__.stantools-spark.pth"

#: For every processor of its kind, as other compilers do; and without checks of undefined behaviour.
ZIG = f"{shlex.quote(sys.executable)} -m ziglang cc -mcpu=baseline -fno-sanitize=undefined"


def find_compiler() -> str | None:
    """Returns the command of the machine's C compiler."""
    commands = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    return next((command for command in commands if command and shutil.which(shlex.split(command)[0])), None)


def _choose_compiler() -> None:
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        sys.exit(f"stantools is compiled, and Python.h is missing in {headers}: install Python's headers (python3-dev)")
    compiler = find_compiler()
    if compiler is None:
        if importlib.util.find_spec("ziglang") is None:
            sys.exit(
                "stantools is compiled, and neither a C compiler (cc, gcc, clang) nor the package ziglang is there"
            )
        compiler = ZIG
    os.environ["CC"] = compiler
    os.environ.setdefault("LDSHARED", f"{compiler} -shared")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_mypy(), *_zig()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_mypy(), *_zig()]


def _mypy() -> list[str]:
    return [] if os.environ.get("STANTOOLS_INTERPRETED") else ["mypy>=2.4,<3"]


def _zig() -> list[str]:
    return [] if find_compiler() else ["ziglang>=0.13,<1"]


def build_wheel(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    _choose_compiler()
    return build_meta.build_wheel(directory, config_settings, metadata)


def build_editable(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    """Builds the wheel of an editable install, in which Spark finds the data sources.

    Spark lists the folders of Python's path (`pkgutil.iter_modules`). The import hook of setuptools is not in that
    list, so the folder of these packages is put on the path.
    """
    _choose_compiler()
    name = build_meta.build_editable(directory, config_settings, metadata)
    add_file(Path(directory, name), ENTRY_FILE, f"{ENTRY}\n".encode())
    return name


def add_file(wheel: Path, name: str, content: bytes) -> None:
    """Adds a file to a wheel, with its hash in the list of files."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    whole = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.infolist():
            data = old.read(each)
            if each.filename.endswith(".dist-info/RECORD"):
                line = io.StringIO()
                csv.writer(line, lineterminator="\n").writerow([name, f"sha256={digest}", len(content)])
                data += line.getvalue().encode()
            new.writestr(each, data)
        new.writestr(name, content)
    wheel.write_bytes(whole.getvalue())
