"""Is a nats-server using this store directory? Looked at without changing anything.

Unlike a streaming server, a nats-server takes no lock, and one without traffic holds no file of its store open at all
(seen with every version from 2.9 to 2.15). So three things are looked at:

1. processes that hold a file of the store open for writing;
2. running nats-server processes whose options or configuration name this directory, or whose store directory cannot
   be determined;
3. files that are being written right now.

The first two need Linux's `/proc` and see other users' processes only as far as we may look.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stantools.store.locks import QUIET_SECONDS, open_handles

_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}\]"'#]+)"""
_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*$", re.MULTILINE)
_STORE_DIR = re.compile(rf"""(?i)(?<![\w.$-])["']?store_?dir["']?\s*[:=\s]\s*{_VALUE}""")
_JETSTREAM = re.compile(r"""(?i)(?<![\w.$-])["']?jetstream["']?\s*[:={\s]\s*["']?(\w*)""")
_INCLUDE = re.compile(rf"""(?<![\w.$-])include\s+{_VALUE}""")
_OFF = ("false", "disabled", "disable", "off", "no")


@dataclass(frozen=True)
class StoreSetting:
    """What is known of where a server keeps its streams."""

    places: tuple[str, ...] = ()  #: directories that it may use, as they are written
    jetstream: bool = False  #: JetStream seems to be enabled
    unknown: str = ""  #: why it cannot be determined, empty if it can


def store_setting(
    path: Path, environment: Callable[[str], str], *, root: Path = Path("/"), jetstream: bool = False
) -> StoreSetting:
    """Looks for the store directory in a configuration file and what it includes.

    Args:
        path: The file.
        environment: Returns the server's environment variables, empty for one that is not set.
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
            place = _assigned(text, value[1:]) or environment(value[1:])
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


def _assigned(text: str, name: str) -> str:
    found = re.search(rf"""(?m)^\s*["']?{re.escape(name)}["']?\s*[:=\s]\s*{_VALUE}""", text)
    return _unquoted(found[1]) if found else ""


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value.strip("'")


_PROCESSES = Path("/proc")
_NAME = "nats-server"
#: Where a server keeps its store when it is told nothing.
_DEFAULT = "nats"
_CONFIG_FLAGS = ("c", "config")
_STORE_FLAGS = ("sd", "store_dir")
_JETSTREAM_FLAGS = ("js", "jetstream")


def find_server(
    root: Path, *, quiet: float = QUIET_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Looks for signs that a server is using a JetStream directory.

    Args:
        root: The directory `jetstream`, which holds the accounts. It need not exist.
        quiet: Seconds that it must have been left alone; 0 does not look at the times.
        sleep: For tests.

    Yields:
        A sentence for each sign. The times are looked at only if there is no other sign, because that may take
        `quiet` seconds.
    """
    seen = False
    if root.is_dir():
        for use in open_handles(root, _identities(root)):
            seen = True
            yield use.detail
    if not seen:
        for process in running_servers():
            if reason := process.uses(root):
                seen = True
                yield reason
    if not seen and quiet > 0 and (moving := _moving(root, quiet, sleep)):
        yield f"{moving} is being written right now"


@dataclass(frozen=True)
class RunningServer:
    """A running nats-server."""

    pid: int
    arguments: list[str]
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", _PROCESSES / str(self.pid))

    def uses(self, root: Path) -> str:
        """Returns why it is taken to use the directory; empty if it does not, or has ended meanwhile."""
        reason = self._reason(root)
        return reason if self.directory.exists() else ""

    def _reason(self, root: Path) -> str:
        who = f"process {self.pid} is a nats-server"
        setting = self._setting()
        if setting.unknown:
            # One that has started has made its directory.
            unknown = f"{who}, and its store directory cannot be determined ({setting.unknown})"
            return unknown if root.exists() else ""
        for place in setting.places:
            base = self._seen(place)
            if base is None:
                return f"{who}, and its store directory cannot be determined ({place} is relative)"
            if any(_same(candidate, root) for candidate in (base / "jetstream", base)):
                return f"{who} with store directory {place}"
        return ""

    def _setting(self) -> StoreSetting:
        """What its options and its configuration file say about the store directory."""
        if given := self._flag(_STORE_FLAGS):
            return StoreSetting(places=(given,))
        setting = StoreSetting(jetstream=any(self._has(flag) for flag in _JETSTREAM_FLAGS))
        if config := self._flag(_CONFIG_FLAGS):
            place = self._seen(config)
            if place is None:
                return StoreSetting(unknown=f"its configuration file {config} is relative")
            setting = store_setting(place, self._variable, root=self._root, jetstream=setting.jetstream)
        if setting.jetstream and not setting.places and not setting.unknown:
            temporary = self._variable("TMPDIR") or "/tmp"
            return StoreSetting(places=(f"{temporary}/{_DEFAULT}",))
        return setting

    def _flag(self, names: tuple[str, ...]) -> str:
        """The value of an option, in the forms `-n value`, `-n=value`, with one or two dashes."""
        for position, argument in enumerate(self.arguments):
            name, equals, value = argument.lstrip("-").partition("=")
            if argument.startswith("-") and name in names:
                return value if equals else "".join(self.arguments[position + 1 : position + 2])
        return ""

    def _has(self, name: str) -> bool:
        return any(
            argument in (f"-{name}", f"--{name}", f"-{name}=true", f"--{name}=true") for argument in self.arguments
        )

    def _seen(self, place: str) -> Path | None:
        """A path of the process, which may live in a container, as we see it; None if its place cannot be seen."""
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
        try:
            command = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue  # gone
        program, *arguments = [os.fsdecode(each) for each in command.split(b"\0")[:-1]] or [""]
        if Path(program).name.startswith(_NAME):
            yield RunningServer(int(entry.name), arguments)


def _identities(root: Path) -> set[tuple[int, int]]:
    """Device and inode of the message blocks, to recognise them from inside a container."""
    found = set()
    for path in root.glob("*/streams/*/msgs/*.blk"):
        try:
            status = path.stat()
        except OSError:
            continue  # gone
        found.add((status.st_dev, status.st_ino))
    return found


def _same(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except OSError:
        pass
    try:
        return os.path.realpath(one) == os.path.realpath(two)
    except OSError:
        return False  # the process whose root it is seen by has ended meanwhile


def _moving(root: Path, quiet: float, sleep: Callable[[float], None]) -> str:
    """Watches a directory that has been written just now; writing that ended before is nobody's."""
    before = _snapshot(root)
    newest = max((changed for changed, _ in before.values()), default=0)
    if time.time() - newest / 1e9 >= quiet:
        return ""
    sleep(quiet)
    after = _snapshot(root)
    return min((name for name in before.keys() | after.keys() if before.get(name) != after.get(name)), default="")


def _snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Time of change in nanoseconds and size of every file."""
    found = {}
    for base, _, names in os.walk(root):
        for name in names:
            path = os.path.join(base, name)  # noqa: PTH118 (many of them)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # gone between the two looks
            found[path] = (status.st_mtime_ns, status.st_size)
    return found
