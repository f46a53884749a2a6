"""The directories of the user, who may have none: a process of an unknown user, without HOME."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stantools.errors import UsageError


def below_home(*parts: str) -> Path:
    """Returns a path below the user's home directory; below `~` if the user has none."""
    return Path(os.path.expanduser("~"), *parts)  # noqa: PTH111 (Path.expanduser() raises)


def expanded(text: str) -> Path:
    """Returns the path with the home directory in place of `~` or `~USER`; UsageError if there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        raise UsageError(f"{text}: no home directory is known for it", "give a path without ~") from problem


def settings_directory(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME")
    return Path(base) if base else below_home(".config")
