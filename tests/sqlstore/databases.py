"""Private database servers on loopback: MariaDB and PostgreSQL, where Debian's packages are installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests import servers
from tests.waiting import PATIENCE

_PLACES = ("/usr/sbin", "/usr/local/bin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True))


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))


def available(driver: str) -> bool:
    names = ("mariadbd", "mariadb-install-db", "mariadb") if driver == "mysql" else ("postgres", "initdb", "psql")
    return all(program(name) for name in names)


def _run(*command: object, **options: object) -> None:
    found = subprocess.run(list(map(str, command)), capture_output=True, check=False, **options)  # type: ignore[call-overload]
    assert not found.returncode, found.stderr[-2000:]


class Database:
    """A server with databases by name."""

    def __init__(self, driver: str, folder: Path) -> None:
        self.driver, self.folder, self.port = driver, folder, servers.free_port()
        self._user: str | None = None
        if driver == "postgres" and os.getuid() == 0:  # it refuses to be run by root
            self._user = next(each for each in ("postgres", "nobody") if _known(each))
            shutil.chown(folder, self._user)

    def url(self, name: str) -> str:
        user = "root" if self.driver == "mysql" else "stan"
        return f"{self.driver}://{user}@127.0.0.1:{self.port}/{name}"

    def load(self, name: str, dump: Path) -> None:
        """Makes a database of a dump."""
        with dump.open("rb") as file:
            if self.driver == "mysql":
                client = (program("mariadb"), "--no-defaults", "-h127.0.0.1", f"-P{self.port}", "-uroot")
                _run(*client, "-e", f"DROP DATABASE IF EXISTS `{name}`; CREATE DATABASE `{name}`")
                _run(*client, "--default-character-set=utf8mb4", "--binary-mode", name, stdin=file)
            else:
                client = (program("psql"), "-X", "-q", "-h127.0.0.1", f"-p{self.port}", "-Ustan")
                _run(*client, "-c", f'DROP DATABASE IF EXISTS "{name}"', "postgres")
                _run(*client, "-c", f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'", "postgres")
                _run(*client, name, stdin=file)

    def client(self, name: str) -> list[str]:
        """Returns the command that runs the statements of its input."""
        if self.driver == "mysql":
            command = (program("mariadb"), "--no-defaults", "-h127.0.0.1", f"-P{self.port}", "-uroot", name)
        else:
            command = (program("psql"), "-X", "-q", "-h127.0.0.1", f"-p{self.port}", "-Ustan", name)
        return list(map(str, command))

    def run(self, name: str, statement: str) -> None:
        _run(*self.client(name), "-e" if self.driver == "mysql" else "-c", statement)

    @contextlib.contextmanager
    def writing(self, name: str, statements: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Runs statements beside the block, at the end of which they are stopped."""
        with statements.open("rb") as file:
            process = subprocess.Popen(self.client(name), stdin=file, stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)

    @contextlib.contextmanager
    def started(self) -> Iterator[Database]:
        data = self.folder / "data"
        if self.driver == "mysql":
            _run(
                *(
                    program("mariadb-install-db"),
                    "--no-defaults",
                    f"--datadir={data}",
                    "--auth-root-authentication-method=normal",
                ),
                *("--skip-test-db", f"--user={pwd.getpwuid(os.getuid()).pw_name}"),
            )
            command = [
                *(program("mariadbd"), "--no-defaults", f"--datadir={data}", f"--socket={self.folder / 's'}"),
                *(f"--port={self.port}", "--bind-address=127.0.0.1", f"--pid-file={self.folder / 'pid'}"),
                *("--innodb-flush-log-at-trx-commit=0", f"--user={pwd.getpwuid(os.getuid()).pw_name}"),
            ]
            ask = (program("mariadb"), "--no-defaults", "-h127.0.0.1", f"-P{self.port}", "-uroot", "-e", "SELECT 1")
        else:
            _run(program("initdb"), "-D", data, "-U", "stan", "-A", "trust", "-E", "UTF8", "--no-sync", user=self._user)
            command = [
                *(program("postgres"), "-D", str(data), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"),
                *("-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off"),
            ]
            ask = (program("psql"), "-X", "-h127.0.0.1", f"-p{self.port}", "-Ustan", "-c", "SELECT 1", "postgres")
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, user=self._user)
        try:
            deadline = time.monotonic() + PATIENCE
            while subprocess.run(list(map(str, ask)), capture_output=True, check=False).returncode:
                assert process.poll() is None, (self.folder / "log").read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline, "the database does not answer"
                time.sleep(0.1)
            yield self
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
