"""The nats-servers that run on this machine, and their store directories (Linux).

Their options and configuration are read, as far as permissions allow: includes, variables, and the paths of servers in
containers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}\]"'#]+)"""
_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*$", re.MULTILINE)
_STORE_DIR = re.compile(rf"""(?i)(?<![\w.$-])["']?store_?dir["']?\s*[:=\s]\s*{_VALUE}""")
_JETSTREAM = re.compile(r"""(?i)(?<![\w.$-])["']?jetstream["']?\s*[:={\s]\s*["']?(\w*)""")
_INCLUDE = re.compile(rf"""(?<![\w.$-])include\s+{_VALUE}""")
_OFF = ("false", "disabled", "disable", "off", "no")


@dataclass(frozen=True)
class StoreSetting:
    """A server's store directory, as far as known."""

    places: tuple[str, ...] = ()  #: possible directories, as written
    jetstream: bool = False
    unknown: str = ""  #: why it is unknown, else ""


def store_setting(
    path: Path, environment: Callable[[str], str], *, root: Path = Path("/"), jetstream: bool = False
) -> StoreSetting:
    """Finds the store directory in a configuration file and its includes.

    `environment` returns variables of the server's process, "" if unset; `root` is that process's root directory,
    seen from here; `jetstream`: an option enables JetStream.
    """
    try:
        text = _full_text(path, root)
    except (OSError, ValueError) as problem:
        return StoreSetting(unknown=f"its configuration cannot be read: {problem}")
    places = []
    for value in _STORE_DIR.findall(text):
        place = _unquoted(value)
        if value.startswith("$"):
            name = value[1:]
            found = re.search(rf"""(?m)^\s*["']?{re.escape(name)}["']?\s*[:=\s]\s*{_VALUE}""", text)
            place = (_unquoted(found[1]) if found else "") or environment(name)
            if not place:
                return StoreSetting(unknown=f"its configuration says {value}, which is not understood here")
        places.append(place)
    enabled = any(word.lower() not in _OFF for word in _JETSTREAM.findall(text))
    return StoreSetting(places=tuple(places), jetstream=jetstream or enabled)


def _full_text(path: Path, root: Path) -> str:
    """Returns the text of a file with its includes, without comments."""
    texts: list[str] = []
    waiting, seen = [path], set[tuple[int, int]]()
    while waiting:
        file = waiting.pop()
        status = file.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue  # includes may be circular
        seen.add((status.st_dev, status.st_ino))
        text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
        texts.append(text)
        for name in map(_unquoted, _INCLUDE.findall(text)):
            waiting.append(root / name.lstrip("/") if name.startswith("/") else file.parent / name)
    return "\n".join(texts)


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value.strip("'")


_PROCESSES = Path("/proc")
_NAME = "nats-server"
#: a server's default directory
_DEFAULT = "nats"
_CONFIG_FLAGS = ("c", "config")
_STORE_FLAGS = ("sd", "store_dir")
_JETSTREAM_FLAGS = ("js", "jetstream")


@dataclass(frozen=True)
class RunningServer:
    pid: int
    arguments: list[str]
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", _PROCESSES / str(self.pid))

    def uses(self, root: Path) -> str:
        """Returns why the process is assumed to use the directory; "" if it does not, or has ended."""
        reason = self._reason(root)
        return reason if reason and _command(self.directory) else ""

    def _reason(self, root: Path) -> str:
        who = f"process {self.pid} is a nats-server"
        setting = self._setting()
        if setting.unknown:
            # a started server has created its directory
            unknown = f"{who}, and its store directory cannot be determined ({setting.unknown})"
            return unknown if root.exists() else ""
        for place, base in self._stores(setting):
            if base is None:
                return f"{who}, and its store directory cannot be determined ({place} is relative)"
            if any(_same(candidate, root) for candidate in (base / "jetstream", base)):
                return f"{who} with store directory {place}"
        return ""

    def stores(self) -> list[Path]:
        """Returns its store directories, as far as known; none if it has ended."""
        bases = (base for _, base in self._stores(self._setting()) if base is not None)
        places = [place for base in bases if (place := _resolved(base))]
        return places if _command(self.directory) else []

    def _stores(self, setting: StoreSetting) -> Iterator[tuple[str, Path | None]]:
        return ((place, self._visible_path(place)) for place in setting.places)

    def _setting(self) -> StoreSetting:
        """Returns the store directory by options and configuration file."""
        if given := self._flag(_STORE_FLAGS):
            return StoreSetting(places=(given,))
        enabled = any(
            argument in (f"-{flag}", f"--{flag}", f"-{flag}=true", f"--{flag}=true")
            for flag in _JETSTREAM_FLAGS
            for argument in self.arguments
        )
        setting = StoreSetting(jetstream=enabled)
        if config := self._flag(_CONFIG_FLAGS):
            place = self._visible_path(config)
            if place is None:
                return StoreSetting(unknown=f"its configuration file {config} is relative")
            setting = store_setting(place, self._variable, root=self._root, jetstream=setting.jetstream)
        if setting.jetstream and not setting.places and not setting.unknown:
            temporary = self._variable("TMPDIR") or "/tmp"
            return StoreSetting(places=(f"{temporary}/{_DEFAULT}",))
        return setting

    def _flag(self, names: tuple[str, ...]) -> str:
        """Returns the value of an option, in the forms `-n value` and `-n=value`, with one or two dashes."""
        for position, argument in enumerate(self.arguments):
            name, equals, value = argument.lstrip("-").partition("=")
            if argument.startswith("-") and name in names:
                return value if equals else "".join(self.arguments[position + 1 : position + 2])
        return ""

    def _visible_path(self, place: str) -> Path | None:
        """Returns our path of a path of the process, which may run in a container; None if it is invisible."""
        if not place.startswith("/"):
            try:
                place = f"{(self.directory / 'cwd').readlink()}/{place}"
            except OSError:
                return None
        return self._root / place.lstrip("/")

    @property
    def _root(self) -> Path:
        inside = self.directory / "root"
        return inside if os.access(inside, os.R_OK | os.X_OK) else Path("/")

    def _variable(self, name: str) -> str:
        try:
            environment = (self.directory / "environ").read_bytes()
        except OSError:
            return ""
        prefix = f"{name}=".encode()
        found = (each for each in environment.split(b"\0") if each.startswith(prefix))
        return os.fsdecode(next(found, prefix)[len(prefix) :])


def running_servers() -> Iterator[RunningServer]:
    """Yields the running nats-server processes, known by the name of their program."""
    if not _PROCESSES.is_dir():
        return
    for entry in os.scandir(_PROCESSES):
        if not entry.name.isdigit():
            continue
        program, *arguments = _command(Path(entry.path)) or [""]
        if Path(program).name.startswith(_NAME):
            yield RunningServer(int(entry.name), arguments)


def _command(process: Path) -> list[str]:
    """Returns program and arguments; none if the process has ended, also if its parent has not taken notice yet."""
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(each) for each in command.split(b"\0")[:-1]]


def _same(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except OSError:
        return (place := _resolved(one)) is not None and place == _resolved(two)


def _resolved(path: Path) -> Path | None:
    """Returns the path without links; None if a process to whose root it leads has ended."""
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return None
