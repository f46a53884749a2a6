"""This package on the way to workers on other machines: as an archive that Spark unpacks where they run.

So the workers run the same version as the driver. Compiled kernels come along; they are used where platform and Python
are the same, and the plain ones elsewhere. What the package depends on must be installed there.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

#: The directory that the archive is unpacked to, in the working directory of an executor.
UNPACKED = "stantools-shipped"

_PACKAGE = Path(__file__).resolve().parents[2]
#: Sources of what is compiled, and what only the command line needs.
_LEFT_OUT = {".pyx", ".pxd", ".c", ".pyc", ".html"}


def package_archive(directory: Path) -> Path:
    """Writes the package into an archive.

    Args:
        directory: Where it is written.

    Returns:
        The archive, as `spark.archives` takes it together with `#` and `UNPACKED`.
    """
    path = directory / "stantools.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for each in sorted(_PACKAGE.rglob("*")):
            if each.is_file() and each.suffix not in _LEFT_OUT and "__pycache__" not in each.parts:
                archive.write(each, Path(_PACKAGE.name) / each.relative_to(_PACKAGE))
    return path


def shipping(settings: dict[str, str], directory: Path) -> dict[str, str]:
    """Returns the settings that bring the package to the workers.

    Args:
        settings: Those that are there. Where the user brings archives or a path, it is left to them.
        directory: Where the archive is written; it must stay as long as the application runs.
    """
    if "spark.executorEnv.PYTHONPATH" in settings or "spark.archives" in settings:
        return {}
    archive = package_archive(directory)
    return {
        "spark.archives": f"{archive.as_uri()}#{UNPACKED}",
        "spark.executorEnv.PYTHONPATH": UNPACKED,
    }
