"""Client libraries of NATS Streaming and of JetStream, unmodified, for the tests: fetched once into `.clients/`.

`python tests/clients.py` fetches what is missing (`make test` does it). What cannot be had is skipped, visibly.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / ".clients"
NODE = CLIENTS / "node"
PYTHON = CLIENTS / "python"
C = CLIENTS / "c"
#: The library needs the older protobuf; what else it needs from older times is in `interop/python/shim.py`.
PYTHON_PACKAGES = ("asyncio-nats-streaming==0.4.0", "asyncio-nats-client==0.11.5", "protobuf<3.21")
#: The client of NATS Streaming, and those of JetStream.
NODE_PACKAGES = (
    "node-nats-streaming@0.3.2",
    "@nats-io/transport-node@3.4.0",
    "@nats-io/jetstream@3.4.0",
    "@nats-io/kv@3.4.0",
    "@nats-io/obj@3.4.0",
)
#: Of Debian: what is needed to compile with the C client, and at run time; it has the interface of NATS Streaming.
C_PACKAGE = "libnats-dev"


def python() -> Path | None:
    """The interpreter in whose environment asyncio-nats-streaming is, None if it could not be had."""
    path = PYTHON / "bin" / "python"
    return path if (PYTHON / ".complete").exists() else None


def node_modules() -> Path | None:
    """Where the packages of Node are, None if they or node could not be had."""
    path = NODE / "node_modules"
    there = all((path / package.rpartition("@")[0]).is_dir() for package in NODE_PACKAGES)
    return path if there and shutil.which("node") else None


def c_library() -> Path | None:
    """Where the C client of NATS is unpacked, None if it or a compiler could not be had."""
    return C / "usr" if (C / ".complete").exists() and shutil.which("cc") else None


def c_program(source: Path) -> Path | None:
    """A program that uses the C client, compiled; None where that cannot be.

    Raises:
        subprocess.CalledProcessError: The compiler refuses it.
    """
    library = c_library()
    if library is None:
        return None
    where = next((library / "lib").rglob("libnats.so")).parent
    # The program finds the library by its path.
    version = hashlib.sha256(source.read_bytes() + os.fsencode(where)).hexdigest()[:12]
    program = C / f"{source.stem}-{version}"
    if not program.exists():
        temporary = program.with_suffix(f".{os.getpid()}")
        command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", f"-I{library / 'include' / 'nats'}"]
        command += [f"-I{library / 'include'}", str(source), "-o", str(temporary), f"-L{where}", "-lnats", "-lpthread"]
        command += [f"-Wl,-rpath,{where}", f"-Wl,-rpath-link,{where}", "-Wl,--disable-new-dtags"]
        subprocess.run(command, check=True, timeout=120)
        temporary.replace(program)
    return program


def fetch() -> None:
    """Fetches every client that is missing; says what could not be had."""
    for name, present, get in (
        ("asyncio-nats-streaming", python, _python),
        ("the clients of Node", node_modules, _node),
        ("the C client", c_library, _c),
    ):
        if present() is not None:
            continue
        try:
            get()
        except (OSError, subprocess.SubprocessError) as problem:
            print(f"{name}: could not be had, its tests are skipped ({problem})", file=sys.stderr)


def _python() -> None:
    shutil.rmtree(PYTHON, ignore_errors=True)
    venv.create(PYTHON, with_pip=True)
    command = [PYTHON / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*command, *PYTHON_PACKAGES], check=True, timeout=300, capture_output=True)
    (PYTHON / ".complete").touch()


def _node() -> None:
    NODE.mkdir(parents=True, exist_ok=True)
    (NODE / "package.json").write_text('{"private": true}\n')
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    subprocess.run([*command, *NODE_PACKAGES], check=True, timeout=300, capture_output=True, cwd=NODE)


def _c() -> None:
    """The packages of Debian, unpacked without being installed."""
    shutil.rmtree(C, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _download(folder, C_PACKAGE, update=os.geteuid() == 0)
        # The library, and what that needs and Debian's base does not have.
        _download(folder, _dependency(folder, C_PACKAGE, r"libnats[\d.]+"))
        _download(folder, _dependency(folder, "libnats[0-9]*", r"libprotobuf-c\w+"))
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(C)], check=True, capture_output=True)
    (C / ".complete").touch()


def _download(folder: Path, package: str, *, update: bool = False) -> None:
    command = ["apt-get", "-qq", "download", package]
    got = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    if got.returncode and update:
        subprocess.run(["apt-get", "-qq", "update"], check=False, capture_output=True, timeout=300)
        got = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    got.check_returncode()


def _dependency(folder: Path, package: str, pattern: str) -> str:
    for file in folder.glob(f"{package}_*.deb"):
        answer = subprocess.run(["dpkg-deb", "-f", str(file), "Depends"], check=True, capture_output=True, text=True)
        if found := re.search(pattern, answer.stdout):
            return found.group()
    raise OSError(f"{package} does not need {pattern}")


if __name__ == "__main__":
    fetch()
