"""What the guides of the broker, of high availability and of streams show works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli import main
from broker.config.broker_options import BrokerOptions, CommandAnswer
from broker.config.reader import EXIT_UNAVAILABLE, parse
from tests import clients
from tests.brokers import Broker

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples" / "broker"
GUIDE = (ROOT / "docs" / "broker-guide.md").read_text(encoding="utf-8")
COMPATIBILITY = (ROOT / "docs" / "broker-compatibility.md").read_text(encoding="utf-8")
HIGH_AVAILABILITY = (ROOT / "docs" / "high-availability.md").read_text(encoding="utf-8")
STREAMS = (ROOT / "docs" / "streams-guide.md").read_text(encoding="utf-8")
DEFAULT_URL = "nats://localhost:4222"


def blocks(language: str, page: str = GUIDE) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found
    return found


@pytest.mark.parametrize("text", blocks("conf") + blocks("conf", HIGH_AVAILABILITY))
def test_configurations(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.conf").write_text(text)
    assert main(["-t", "-c", "file.conf"]) == 0
    options = parse(["-c", "file.conf"])
    assert isinstance(options, BrokerOptions)
    assert options.streaming.cluster_id == b"orders"
    assert not options.failure


def test_what_is_called_unavailable_is_refused(tmp_path: Path) -> None:
    found = re.search(r"^\| (.+) \| not available yet \|$", COMPATIBILITY, re.MULTILINE)
    assert found
    for feature in found[1].split(", "):
        key = feature.lower().replace(" ", "")
        file = tmp_path / "file.conf"
        file.write_text(f"{'gateway' if key == 'gateways' else key} {{ port: 7000 }}\n")
        answer = parse(["-c", str(file)])
        assert isinstance(answer, CommandAnswer), feature
        assert (answer.exit_code, "not available yet" in answer.stderr) == (EXIT_UNAVAILABLE, True), feature


def commands() -> Iterator[str]:
    for page in (GUIDE, STREAMS):
        for line in page.splitlines():
            if line.removeprefix("    ").startswith("stan-broker"):
                yield line.partition(" #")[0].strip()


@pytest.mark.parametrize("line", list(commands()))
def test_commands(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES)
    options = parse(shlex.split(line)[1:], {})
    assert isinstance(options, BrokerOptions)
    assert not options.failure


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), http=True) as broker:
        yield broker


def says_stored(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert (done.returncode, done.stdout) == (0, "stored\n"), done.stderr


def written(running: Broker, language: str, path: Path) -> Path:
    (text,) = blocks(language)
    assert DEFAULT_URL in text
    path.write_text(text.replace(DEFAULT_URL, running.url))
    return path


def test_python(running: Broker, tmp_path: Path) -> None:
    says_stored([sys.executable, str(written(running, "python", tmp_path / "me.py"))])


def test_node(running: Broker, tmp_path: Path) -> None:
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("node-nats-streaming is not here (python tests/clients.py fetches it)")
    says_stored(["node", str(written(running, "js", tmp_path / "me.js"))], NODE_PATH=str(modules))


def test_c(running: Broker, tmp_path: Path) -> None:
    library = clients.c_library()
    if library is None:
        pytest.skip("Debian's libnats-dev or a compiler is not here (python tests/clients.py fetches the former)")
    source, program = written(running, "c", tmp_path / "me.c"), tmp_path / "me"
    where = next((library / "lib").rglob("libnats.so")).parent
    words = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{library / 'include'}"]
    words += [f"-L{where}", "-lnats", f"-Wl,-rpath,{where}", f"-Wl,-rpath-link,{where}", "-Wl,--disable-new-dtags"]
    subprocess.run(["cc", str(source), "-o", str(program), *words], check=True, timeout=120)
    says_stored([str(program)])


def test_endpoints(running: Broker) -> None:
    table = COMPATIBILITY.partition("### Endpoints")[2].partition("\n### ")[0]
    paths = re.findall(r"^\| `(/[\w/]+)` \|", table, re.MULTILINE)
    assert len(paths) > 20
    for path in paths:
        with urllib.request.urlopen(f"{running.monitoring}{path}", timeout=10) as answer:
            assert answer.status == (204 if path.endswith("isFTActive") else 200), path


def test_every_section_of_the_protocol_is_there() -> None:
    table = COMPATIBILITY.partition("### Protocol")[2].partition("\n### ")[0]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(range(5, 26))


def test_log_lines(running: Broker) -> None:
    said = running.said()
    for block in blocks("text"):
        for line in block.splitlines():
            assert line[line.index(" [INF] ") :] in said
