"""What a nats-server's configuration file says about where its store is. Nothing else of the file is looked at.

The grammar is a relaxed JSON: `key: value`, `key = value` or `key value`, comments from `#` or `//`, strings with or
without quotes, `include 'file'`, `$variable`. For one key a search is enough, and it may err on one side only: a
directory that the server does not use may be found, one that it uses may not be missed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}\]"'#]+)"""
_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*$", re.MULTILINE)
_STORE_DIR = re.compile(rf"""(?i)(?<![\w.$-])["']?store_?dir["']?\s*[:=\s]\s*{_VALUE}""")
_JETSTREAM = re.compile(r"""(?i)(?<![\w.$-])["']?jetstream["']?\s*[:={\s]\s*["']?(\w*)""")
_INCLUDE = re.compile(rf"""(?<![\w.$-])include\s+{_VALUE}""")
_OFF = ("false", "disabled", "disable", "off", "no")


@dataclass(frozen=True)
class StoreSetting:
    """What is known of where a server keeps its streams.

    Attributes:
        places: Directories that it may use, as they are written.
        jetstream: JetStream seems to be enabled.
        unknown: Why it cannot be told, empty if it can.
    """

    places: tuple[str, ...] = ()
    jetstream: bool = False
    unknown: str = ""


def store_setting(
    path: Path, environment: Callable[[str], str], *, root: Path = Path("/"), jetstream: bool = False
) -> StoreSetting:
    """Looks for the store directory in a configuration file and what it includes.

    Args:
        path: The file.
        environment: Gives the server's environment variables, empty for one that is not set.
        root: Where the server's root directory is, seen from here.
        jetstream: JetStream is enabled by an option.
    """
    try:
        text = _whole(path, root)
    except (OSError, ValueError) as problem:
        return StoreSetting(unknown=f"its configuration cannot be read: {problem}")
    places = []
    for value in _STORE_DIR.findall(text):
        place = _unquoted(value)
        if value.startswith("$"):
            place = _variable(text, value[1:]) or environment(value[1:])
            if not place:
                return StoreSetting(unknown=f"its configuration says {value}, which is not known here")
        places.append(place)
    enabled = any(word.lower() not in _OFF for word in _JETSTREAM.findall(text))
    return StoreSetting(places=tuple(places), jetstream=jetstream or enabled)


def _whole(path: Path, root: Path) -> str:
    """The text of a file and of everything that it includes, without comments."""
    texts: list[str] = []
    waiting, seen = [path], set[tuple[int, int]]()
    while waiting:
        file = waiting.pop()
        status = file.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue  # they may include each other in a circle
        seen.add((status.st_dev, status.st_ino))
        text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
        texts.append(text)
        for name in map(_unquoted, _INCLUDE.findall(text)):
            waiting.append(root / name.lstrip("/") if name.startswith("/") else file.parent / name)
    return "\n".join(texts)


def _variable(text: str, name: str) -> str:
    found = re.search(rf"""(?m)^\s*["']?{re.escape(name)}["']?\s*[:=\s]\s*{_VALUE}""", text)
    return _unquoted(found[1]) if found else ""


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value.strip("'")
