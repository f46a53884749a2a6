"""Client libraries of NATS Streaming, unmodified, for the tests: fetched once into `.clients/`.

`python tests/clients.py` fetches what is missing (`make test` does it). What cannot be had is skipped, visibly.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / ".clients"
NODE = CLIENTS / "node"
PYTHON = CLIENTS / "python"
#: The library needs the older protobuf; what else it needs from older times is in `interop/python/shim.py`.
PYTHON_PACKAGES = ("asyncio-nats-streaming==0.4.0", "asyncio-nats-client==0.11.5", "protobuf<3.21")
NODE_PACKAGES = ("node-nats-streaming@0.3.2",)


def python() -> Path | None:
    """The interpreter in whose environment asyncio-nats-streaming is, None if it could not be had."""
    path = PYTHON / "bin" / "python"
    return path if (PYTHON / ".complete").exists() else None


def node_modules() -> Path | None:
    """Where node-nats-streaming is, None if it or node could not be had."""
    path = NODE / "node_modules"
    return path if (path / "node-nats-streaming").is_dir() and shutil.which("node") else None


def fetch() -> None:
    """Fetches every client that is missing; says what could not be had."""
    for name, present, get in (
        ("asyncio-nats-streaming", python, _python),
        ("node-nats-streaming", node_modules, _node),
    ):
        if present() is not None:
            continue
        try:
            get()
        except (OSError, subprocess.CalledProcessError) as problem:
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


if __name__ == "__main__":
    fetch()
