from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.targets.in_use import find_server
from stantools.store import running_servers
from stantools.store.locks import configured_servers
from stantools.store.running_servers import RunningServer
from tests import natsclient, servers
from tests.calls import before_call

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a server with exactly these arguments."""
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip("no nats-server here (python tests/servers.py)")
    running = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        port = servers.free_port()
        command = [str(servers.binary(servers.NEWEST)), "-a", "127.0.0.1", "-p", str(port), *arguments]
        log = tmp_path / f"log{len(running)}"
        process = subprocess.Popen(
            [*command, "-l", str(log)], cwd=tmp_path, env=os.environ | environment, stdin=subprocess.DEVNULL
        )
        running.append(process)
        deadline = time.monotonic() + 60
        while not (log.exists() and "Server is ready" in log.read_text()):
            assert process.poll() is None, log.read_text() if log.exists() else "no log"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def _ours(signs: Iterator[str], *processes: subprocess.Popen[bytes]) -> list[str]:
    """What is said of these processes: others on this machine are none of the test's business."""
    return [sign for sign in signs if any(f"process {process.pid} " in sign for process in processes)]


def _find(root: Path, *processes: subprocess.Popen[bytes]) -> list[str]:
    return _ours(find_server(root, quiet=0), *processes)


def test_an_idle_server_is_found_by_its_option(tmp_path: Path, run: Callable[..., Any]) -> None:
    for number, form in enumerate((("-sd", "s0"), ("--store_dir=s1",), ("-store_dir", str(tmp_path / "s2")))):
        process = run("-js", *form)
        [sign] = _find(tmp_path / f"s{number}/jetstream", process)
        assert "is a nats-server with store directory" in sign
        assert not _find(tmp_path / "elsewhere/jetstream", process)


def test_an_idle_server_is_found_by_its_configuration(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/main.conf").write_text("include js.conf")
    (tmp_path / "conf/js.conf").write_text("jetstream { store_dir: $PLACE }")
    process = run("-c", "conf/main.conf", PLACE=str(tmp_path / "data"))
    [sign] = _find(tmp_path / "data/jetstream", process)
    assert f"with store directory {tmp_path / 'data'}" in sign
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert _find(tmp_path / "link/jetstream", process)
    assert not _find(tmp_path / "other/jetstream", process)
    # Other verbs look for it from within its directory.
    for place in ("data", "data/jetstream", "link/jetstream/$G/streams/A"):
        assert [each.pid for each in configured_servers(tmp_path / place) if each.pid == process.pid], place
    assert process.pid not in [each.pid for each in configured_servers(tmp_path / "other")]


def test_the_default_place(tmp_path: Path, run: Callable[..., Any]) -> None:
    process = run("-js", TMPDIR=str(tmp_path))
    assert (tmp_path / "nats/jetstream").is_dir()
    assert _find(tmp_path / "nats/jetstream", process)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-c", "/no/such.conf"], "its configuration cannot be read"),
        (["-js", "-c"], ""),
        (["-js", "-sd", "$"], ""),
    ],
)
def test_a_server_whose_place_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    # Not a real one: while it ran, it would stop whoever else is looking.
    monkeypatch.setattr(
        "stantools.migration.targets.in_use.running_servers", lambda: iter([RunningServer(os.getpid(), arguments)])
    )
    assert list(find_server(tmp_path / "jetstream", quiet=0)) == []
    (tmp_path / "jetstream").mkdir()
    found = list(find_server(tmp_path / "jetstream", quiet=0))
    if not reason:
        assert found == []
        return
    [sign] = found
    assert "its store directory cannot be determined" in sign
    assert reason in sign


def test_a_server_without_jetstream_uses_nothing(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "plain.conf").write_text("max_payload: 1MB")
    process = run("-c", "plain.conf")
    assert not _find(tmp_path / "jetstream", process)


@pytest.mark.parametrize("arguments", [["-sd", "{root}"], ["-c", "{root}/gone.conf"]], ids=["option", "configuration"])
def test_a_server_that_has_ended_uses_nothing(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "jetstream").mkdir()
    process = subprocess.Popen(["true"])
    process.wait()
    assert not RunningServer(process.pid, [each.format(root=tmp_path) for each in arguments]).uses(
        tmp_path / "jetstream"
    )


@pytest.mark.parametrize("reaped", [False, True], ids=["unreaped", "reaped"])
@pytest.mark.parametrize("option", [["-sd", "."], ["-c", "main.conf"]], ids=["option", "configuration"])
def test_a_server_may_end_before_any_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str], *, reaped: bool
) -> None:
    root = tmp_path / "jetstream"
    root.mkdir()
    (tmp_path / "main.conf").write_text("include more.conf")
    (tmp_path / "more.conf").write_text("jetstream { store_dir: $PLACE }")
    (tmp_path / "wait").write_text("echo started; read line")
    processes = tmp_path / "processes"
    processes.mkdir()
    monkeypatch.setattr(running_servers, "_PROCESSES", processes)  # only this one
    command = ["nats-server", "wait", *option]
    environment = os.environ | {"PLACE": str(tmp_path)}
    for look in (_by_a_migration, _by_a_verb):
        answers = []
        for step in itertools.count():
            with subprocess.Popen(
                command,
                executable="/bin/sh",
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as process:
                assert process.stdout
                process.stdout.readline()
                seen = processes / str(process.pid)
                seen.symlink_to(f"/proc/{process.pid}")

                with before_call(step, functools.partial(_end, process, reaped=reaped)) as calls:
                    answers.append(look(root))
                _end(process, reaped=True)
            seen.unlink()
            if len(calls) <= step:
                break
        assert not answers[0]
        assert answers[-1]


def _end(process: subprocess.Popen[bytes], *, reaped: bool) -> None:
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            process.wait()


def _by_a_migration(root: Path) -> bool:
    return any(process.uses(root) for process in running_servers.running_servers())


def _by_a_verb(root: Path) -> bool:
    return bool(list(configured_servers(root)))


async def test_a_busy_server_is_found_by_its_files(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with natsclient.connected(server.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        await stream.publish("s", b"x")
    root = server.store_dir / "jetstream"
    [sign] = _ours(find_server(root, quiet=0), server.process)
    assert sign.endswith("1.blk open for writing")
    server.stop()
    assert not [sign for sign in find_server(root, quiet=0) if str(root) in sign]


def test_files_that_change_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stantools.migration.targets.in_use.running_servers", lambda: iter(()))
    file = tmp_path / "jetstream/$G/streams/S/msgs/1.blk"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert not list(find_server(tmp_path / "jetstream", quiet=5, sleep=lambda _: None))
    grow = lambda _: file.write_bytes(b"xy")  # noqa: E731
    assert list(find_server(tmp_path / "jetstream", quiet=5, sleep=grow)) == [f"{file} is being written right now"]
    os.utime(file, (1, 1))
    assert not list(find_server(tmp_path / "jetstream", quiet=5, sleep=grow))
    assert not list(find_server(tmp_path / "nothing", quiet=5, sleep=grow))


def test_json_configurations_too(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "main.conf").write_text(json.dumps({"jetstream": {"store_dir": str(tmp_path / "data")}}))
    process = run("--config=main.conf")
    assert _find(tmp_path / "data/jetstream", process)
