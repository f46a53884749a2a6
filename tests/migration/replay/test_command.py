"""`stantools replay` as a command: options, output, exit codes, being interrupted and killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.replay.state import ReplayPosition, ReplayStateFile
from tests import natsclient
from tests.migration.replay.fakestreaming import FakeStreaming
from tests.migration.replay.stores import MS, START, messages
from tests.migration.replay.test_run import in_stream, payloads, with_streams
from tests.migration.stores import write_store
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NATS_URL", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", {"old.a": messages(100), "old.b": messages(100, text="b")})


def state_files() -> list[Path]:
    return sorted(Path().glob("*.json"))


def test_a_dry_run_needs_no_server(run: Any, store: Path) -> None:
    done = run(
        "replay", store, "--dry-run", "--subject", "old.*=new.*", "--seq", "11:", "--rate", "1", "--speed", "max"
    )
    assert done.code == 0
    assert done.out.splitlines()[2].split()[:5] == ["old.a", "new.a", "90", "11", "100"]
    assert "would publish 180 messages of 2 channels" in done.out
    assert "about 3m" in done.out
    assert not state_files()
    done = run("replay", store, "--dry-run", "-o", "json", "--channel", "*.b", "--speed", "0.5")
    [channel] = done.json()["channels"]
    assert channel["name"] == channel["to"] == "old.b"
    assert (channel["messages"], channel["first_seq"], channel["last_seq"]) == (100, 1, 100)
    assert channel["last_timestamp_ns"] - channel["first_timestamp_ns"] == 99 * MS
    assert done.json()["seconds"] == 0.198


def test_core(run: Any, start_server: Any, store: Path) -> None:
    server = start_server(jetstream=False)
    done = run("replay", store, "--to", server.url)
    assert done.code == 0
    assert "replayed 200 messages of 2 channels in 0." in done.out
    assert not state_files()


def test_streams(run: Any, start_server: Any, store: Path) -> None:
    server = start_server()
    asyncio.run(with_streams(server.url, S=["x.new.*"]))
    rewrite = ["--subject", "old.*=new.*", "--prefix", "x", "--speed", "max"]
    done = run(
        "replay", store, "--as", "jetstream", *rewrite, "--origin-headers", "-o", "json", env={"NATS_URL": server.url}
    )
    assert done.code == 0
    result = done.json()
    assert {name: result[name] for name in ("schema", "finished", "messages", "left", "state", "already_there")} == {
        "schema": 1,
        "finished": True,
        "messages": 200,
        "left": 0,
        "state": None,
        "already_there": 0,
    }
    found = asyncio.run(in_stream(server.url, "S"))
    assert [data for subject, data in found if subject == "x.new.a"] == [b"m%d" % n for n in range(1, 101)]
    assert [data for subject, data in found if subject == "x.new.b"] == [b"b%d" % n for n in range(1, 101)]


def test_nothing_to_do(run: Any, store: Path) -> None:
    done = run("replay", store, "--to", "nats://127.0.0.1:1", "--seq", "200:")
    assert done.code == 0
    assert "replayed 0 messages" in done.out
    assert not state_files()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "the target is missing"),
        (["--to", "nats://127.0.0.1:1", "--speed", "fast"], 2, "not a speed"),
        (["--to", "nats://127.0.0.1:1", "--speed", "0"], 2, "not a speed"),
        (["--to", "nats://127.0.0.1:1", "--speed", "nan"], 2, "not a speed"),
        (["--to", "nats://127.0.0.1:1", "--rate", "0"], 2, "--rate"),
        (["--to", "nats://127.0.0.1:1", "--cluster-id", "c"], 2, "--as streaming"),
        (["--to", "nats://127.0.0.1:1", "--as", "streaming", "--origin-headers"], 2, "--origin-headers needs headers"),
        (["--to", "nats://127.0.0.1:1", "--subject", "a"], 2, "not a rule"),
        (["--to", "nats://127.0.0.1:1", "--subject", "old.a=x y"], 2, "has a blank"),
        (["--to", "nats://127.0.0.1:1", "--channel", "z"], 2, "no channel matches"),
        (["--to", "nats://127.0.0.1:1"], 3, "cannot connect"),
        (["--to", "http://127.0.0.1:1"], 2, "http"),
        (["--to", "nats://127.0.0.1:1", "--resume"], 4, "this state file does not exist"),
        (["--to", "nats://127.0.0.1:1", "--state", "missing/state"], 3, "missing/state"),
    ],
)
def test_what_cannot_be(run: Any, store: Path, arguments: list[str], code: int, says: str) -> None:
    done = run("replay", store, *arguments)
    assert done.code == code
    assert says in done.err
    assert not state_files()


def test_a_damaged_store(run: Any, start_server: Any, store: Path) -> None:
    server = start_server(jetstream=False)
    path = store / "old.a" / "msgs.1.dat"
    content = bytearray(path.read_bytes())
    content[content.index(b"m50")] ^= 1
    path.write_bytes(content)
    done = run("replay", store, "--to", server.url, "--speed", "max")
    assert done.code == 1
    assert "replayed 199 messages" in done.out
    assert "not intact: old.a: the messages are damaged or gone (sequence 50)" in done.err


def test_encrypted_payloads(run: Any, start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    asyncio.run(with_streams(server.url, S=["orders"]))
    key = tmp_path / "key"
    key.write_text("secret")
    sample = tmp_path / "sample"
    made = run("sample", sample, "--channels", "1", "--messages", "5", "--encryption-key-file", key)
    assert made.code == 0, made.err
    to = ["--to", server.url, "--as", "jetstream", "--speed", "max"]
    done = run("replay", sample, *to, "--encryption-key-file", key)
    assert done.code == 0
    assert all(b"order" in data for _, data in asyncio.run(in_stream(server.url, "S")))
    done = run("replay", sample, *to)
    assert done.code == 0
    assert "may be encrypted" in done.err
    key.write_text("wrong")
    done = run("replay", sample, *to, "--encryption-key-file", key)
    assert done.code == 3
    assert not state_files()


def test_an_unfinished_one_is_not_begun_anew(run: Any, start_server: Any, tmp_path: Path) -> None:
    server = start_server(jetstream=False, config={"max_payload": 1000})
    store = tmp_path / "store"
    write_store(store, {"old.c": [*messages(3), (4, START + 4 * MS, b"", bytes(1001)), *messages(3, first=5)]})
    command = ["replay", store, "--to", server.url, "--speed", "max", "--channel", "old.c"]
    done = run(*command)
    assert done.code == 3
    assert "message 4 of channel old.c has 1001 bytes" in done.err
    assert "--resume continues from stantools-replay-" in done.err
    [state] = state_files()
    assert json.loads(state.read_bytes())["channels"]["old.c"][0] == 3
    assert run(*command).code == 4
    assert run(*command, "--resume").code == 3
    assert run(*command, "--resume", "--seq", "5:").code == 2
    shutil.rmtree(store)
    write_store(store, {"old.c": [*messages(3), *messages(3, first=5, start=START + 5 * MS)]})
    done = run(*command, "--resume", "--dry-run")
    assert "would publish 3 messages" in done.out
    done = run(*command, "--resume")
    assert done.code == 0
    assert "replayed 3 messages" in done.out
    assert not state_files()


def test_another_store_in_its_place(run: Any, store: Path) -> None:
    command = ["replay", store, "--to", "nats://127.0.0.1:1", "--state", "s.json"]
    identity = {
        "store": str(store.resolve()),
        "to": ["nats://127.0.0.1:1"],
        "as": "core",
        "channels": [],
        "rules": [],
        "prefix": "",
        "generation": "split",
        "archived": False,
        "cluster_id": None,
    }
    with ReplayStateFile(Path("s.json"), identity, resume=False) as file:
        file.state.channels = {b"old.a": ReplayPosition(7, START)}
        file.save()
    done = run(*command, "--resume")
    assert done.code == 4
    assert "its message 7 is different now" in done.err
    assert run(*command, "--resume", "--prefix", "x").code == 4
    Path("s.json").write_bytes(b"{")
    done = run(*command, "--resume")
    assert done.code == 3
    assert "not a state file" in done.err


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stantools", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_state(least: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        files = state_files()
        content = files[0].read_bytes() if files else b""
        if content and sum(each[0] for each in json.loads(content)["channels"].values()) >= least:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_and_going_on(run: Any, start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    store = write_store(tmp_path / "long", {"a": messages(400, step=10 * MS)})
    asyncio.run(with_streams(server.url, S=["a"]))
    command = ["replay", store, "--to", server.url, "--as", "jetstream"]
    process = start(*command)
    wait_for_state(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "of 400 messages of 1 channel" in out
    assert "interrupted; the same command with --resume continues from stantools-replay-" in err
    done = run(*command, "--resume", "--speed", "max")
    assert done.code == 0, done.err
    assert asyncio.run(in_stream(server.url, "S")) == [("a", b"m%d" % n) for n in range(1, 401)]
    assert "already existed" not in done.out
    assert not state_files()


def test_kill_and_going_on(run: Any, start_server: Any, tmp_path: Path) -> None:
    """Nothing is lost or doubled in a stream, whenever the process is killed."""
    server = start_server()
    store = write_store(
        tmp_path / "long", {name: messages(4000, start=START + at, text=name) for at, name in enumerate(("a", "b"))}
    )
    asyncio.run(with_streams(server.url, S=["a", "b"]))
    command = ["replay", store, "--to", server.url, "--as", "jetstream", "--speed", "max", "--rate", "4000"]
    process = start(*command)
    wait_for_state(100)
    for pause in (0.2, 0.5):
        time.sleep(pause)
        process.kill()
        process.communicate(timeout=90)
        process = start(*command, "--resume")
        time.sleep(0.7)
    process.kill()
    process.communicate(timeout=90)
    done = run(*command[:-2], "--resume", "-o", "json")
    assert done.code == 0, done.err
    assert done.json()["finished"]
    found = asyncio.run(payloads(server.url, "S"))
    for name in (b"a", b"b"):
        assert [data for data in found if data.startswith(name)] == [b"%b%d" % (name, n) for n in range(1, 4001)]


async def test_streaming(run: Any, start_server: Any, store: Path) -> None:
    server = start_server(jetstream=False)

    async with FakeStreaming(server.url, cluster_id="mine") as fake:
        options = ["--as", "streaming", "--cluster-id", "mine", "--client-id", "me", "--speed", "max"]
        process = await asyncio.to_thread(start, "replay", store, "--to", server.url, *options)
        out, err = await asyncio.to_thread(process.communicate, None, 20)
        assert process.returncode == 0, err
        assert "replayed 200 messages" in out
        assert fake.payloads(b"old.a") == [b"m%d" % n for n in range(1, 101)]
        assert fake.closed == [b"me"]


async def test_ctrl_c_leaves_the_streaming_server(start_server: Any, tmp_path: Path) -> None:
    server = start_server(jetstream=False)
    store = write_store(tmp_path / "long", {"a": messages(1000, step=10 * MS)})

    async with FakeStreaming(server.url) as fake:
        process = await asyncio.to_thread(start, "replay", store, "--to", server.url, "--as", "streaming")
        await eventually(lambda: len(fake.payloads(b"a")) > 20, 20)
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.to_thread(process.communicate, None, 20)
        assert process.returncode == 130, err
        [state] = state_files()
        assert json.loads(state.read_bytes())["channels"]["a"][0] == len(fake.payloads(b"a"))
        assert len(fake.closed) == 1
        assert not fake.clients


def test_progress(run: Any, start_server: Any, store: Path) -> None:
    server = start_server(jetstream=False)
    done = run("replay", store, "--to", server.url, "--progress", "json")
    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert lines[-1]["progress"] == "replay"
    assert lines[-1]["bytes"] == lines[-1]["total"] == sum(len(f"m{n}") + len(f"b{n}") for n in range(1, 101))


async def test_it_is_nats_py_that_reads_what_was_published(start_server: Any, run: Any, tmp_path: Path) -> None:
    """Bytes of every kind, empty payloads, and a name that is not ASCII."""
    server = start_server()
    records = [(1, START, b"", b""), (2, START, b"r", bytes(range(256))), (3, START, b"", b"\r\nMSG x 1 1\r\n")]
    store = write_store(tmp_path / "odd", {"grüße.welt": records})

    async with natsclient.connected(server.url) as client:
        await client.jetstream().add_stream(name="S", subjects=["grüße.*"])
        done = await asyncio.to_thread(run, "replay", store, "--to", server.url, "--as", "jetstream")
        assert done.code == 0, done.err
        found = [await client.jetstream().get_msg("S", number) for number in (1, 2, 3)]
    found = found
    assert [message.data or b"" for message in found] == [data for *_, data in records]
    assert found[1].headers["Nats-Streaming-Reply"] == "r"
