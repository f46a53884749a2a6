"""`stantools migrate` as a user runs it: every target, every way to go on after an interruption, every refusal."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click import Option
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode
from stantools.format.crc import Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.migration.journal import Journal, StreamState
from stantools.migration.plan.planfile import read_plan
from stantools.migration.workflow import default_plan_file
from stantools.nats.jetstream import JetStream
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, write_sample
from tests import servers
from tests.conftest import others_slow
from tests.migration.reading import consumers_of, reads, state_of
from tests.migration.stores import fill
from tests.natsclient import with_jetstream

COMMAND = [sys.executable, "-m", "stantools"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store with gaps, durables and pending messages in three channels."""
    root = tmp_path_factory.mktemp("sample") / "shop" / "store"
    root.parent.mkdir()
    write_sample(root, SampleOptions(channels=3, messages=300, size=60, seed=5, gaps=True))
    return root


@pytest.fixture(scope="module")
def big_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that work on it can be interrupted."""
    root = tmp_path_factory.mktemp("big") / "shop" / "store"
    root.parent.mkdir()
    write_sample(root, SampleOptions(channels=3, messages=10_000, size=100, seed=6, gaps=True))
    return root


@cache
def stored(root: Path, channel: str) -> dict[int, tuple[int, str, str]]:
    """What a channel holds, read the slow way: sequence -> (timestamp, SHA-256, reply). Remembered."""
    reader = MessageReader(open_datastore(root).channel(channel), Crc())
    return {
        m.sequence: (m.timestamp, hashlib.sha256(m.data).hexdigest(), m.reply.decode())
        for m in reader.read(Selection())
        if isinstance(m, StoredMessage)
    }


def streamed(url: str, stream: str) -> dict[int, tuple[int, str, str]]:
    """What a stream holds, as nats-py sees it."""
    seen = reads(url, stream)
    found = {
        m.sequence: (m.timestamp, hashlib.sha256(m.data).hexdigest(), m.headers.get("Nats-Streaming-Reply", ""))
        for m in seen
    }
    assert len(found) == len(seen)
    return found


class Ended(NamedTuple):
    """How a run of the command ended."""

    returncode: int
    stdout: str
    stderr: str


def run(place: Path, *words: object, expect: int = 0) -> Ended:
    """Runs the command in a directory of its own, in this process, as its start takes longer than most work."""
    place.mkdir(exist_ok=True)
    with contextlib.chdir(place):
        result = CliRunner().invoke(cli, list(map(str, words)), prog_name="stantools")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    assert result.exit_code == expect, result.stdout + result.stderr
    return Ended(result.exit_code, result.stdout, result.stderr)


def in_process(place: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, in a process that knows the sources and has no terminal."""
    return subprocess.run(
        [*map(str, words)],
        cwd=place,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_process(place: Path, *words: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own."""
    place.mkdir(exist_ok=True)
    result = in_process(place, *COMMAND, *words)
    assert "Traceback" not in result.stderr
    assert result.returncode == expect, result.stdout + result.stderr
    return result


def channels_of(root: Path) -> list[str]:
    return open_datastore(root).channel_names


def stream_of(channel: str) -> str:
    return channel.replace(".", "_")


def check_all(root: Path, url: str) -> None:
    """Every channel is there, exactly."""
    for channel in channels_of(root):
        assert streamed(url, stream_of(channel)) == stored(root, channel), channel


def test_all_in_one(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    done = run_process(place, "migrate", store, "--to", "jetstream", "--server", server.url, "--yes")
    assert "3 streams are as planned" in done.stdout
    check_all(store, server.url)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert {path.name for path in place.iterdir()} == {"shop-store.migration.yaml", "shop-store.migration.yaml.journal"}
    again = run(place, "migrate", store, "--server", server.url, "--yes")
    assert again.stdout.count("complete before") == 3
    run_process(place, "migrate", "verify", "shop-store.migration.yaml")
    (place / "shop-store.migration.yaml.journal").unlink()
    recognised = run(place, "migrate", store, "--server", server.url, "--yes")
    assert recognised.stdout.count("complete before") == 3
    assert recognised.stdout.count("compared") >= 3


def test_stage_by_stage_with_an_edited_plan(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    planned = run(place, "migrate", "plan", store, "--server", server.url, "--plan", "p.yaml")
    assert "nothing" not in planned.stderr
    assert count_streams(server.url) == 0
    text = (place / "p.yaml").read_text()
    assert not re.search("password|token", text)
    plan = yaml.safe_load(text)
    names = [stream["stream"] for stream in plan["streams"]]
    edited = text.replace(f"- stream: {names[0]}\n", "- stream: RENAMED\n")
    (place / "p.yaml").write_text(edited)
    run(place, "migrate", "apply", "p.yaml", "--yes")
    channel = plan["streams"][0]["channels"][0]["channel"]
    assert streamed(server.url, "RENAMED") == stored(store, channel)
    run(place, "migrate", "verify", "p.yaml")
    refused = run(place, "migrate", store, "--server", server.url, "--yes", "--plan", "p.yaml", expect=ExitCode.REFUSED)
    assert "a different plan" in refused.stderr


def count_streams(url: str) -> int:
    return len(with_jetstream(url, lambda js: js.stream_names()))


def test_a_dry_run_changes_nothing(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    shown = run(place, "migrate", store, "--server", server.url, "--dry-run")
    assert "left out" in shown.stdout
    assert list(place.iterdir()) == []
    assert count_streams(server.url) == 0


def test_nobody_to_ask(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    asked = run(tmp_path / "work", "migrate", store, "--server", server.url, expect=ExitCode.USAGE)
    assert "--yes" in asked.stderr
    assert count_streams(server.url) == 0


def kill_again_and_again(place: Path, words: list[object], chance: random.Random) -> int:
    """Starts the command three times and kills it a little after its work has begun; how often it was still at it."""
    journal, killed = place / "shop-store.migration.yaml.journal", 0
    for latest in (0.05, 0.2, 0.5):
        before = journal.stat().st_size if journal.exists() else 0
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and (not journal.exists() or journal.stat().st_size == before):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, latest))
        process.kill()
        killed += process.wait() == -9
    return killed


@pytest.mark.parametrize("way", others_slow(["restore", "publish"], ["restore"]))
@pytest.mark.parametrize("version", [pytest.param(servers.OLDEST, marks=pytest.mark.slow), servers.NEWEST])
def test_killed_again_and_again(
    way: str, version: str, big_store: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """kill -9 at any point; the same command again finishes with nothing doubled or lost."""
    server, place = start_server(version), tmp_path / "work"
    place.mkdir()
    words = ["migrate", big_store, "--server", server.url, "--yes", "--via", way, "--parallel", 1]
    assert kill_again_and_again(place, words, random.Random(f"{way} {version}"))
    run(place, *words)
    for channel in channels_of(big_store):
        seen, have = streamed(server.url, stream_of(channel)), stored(big_store, channel)
        if way == "restore":
            assert seen == have
        else:
            assert {n: each[1:] for n, each in seen.items()} == {n: each[1:] for n, each in have.items()}
    run(place, *words)


@pytest.mark.parametrize("target", others_slow(["--out", "--jetstream-store"], ["--jetstream-store"]))
def test_killed_while_writing_files(target: str, big_store: Path, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    words = ["migrate", big_store, target, "there", "--yes", "--parallel", 1]
    assert kill_again_and_again(place, words, random.Random(target))
    run(place, *words)
    run(place, "migrate", "verify", "shop-store.migration.yaml")
    assert not [path for path in place.rglob("*") if "partial" in path.name]


def test_a_store_for_a_stopped_server(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    refused = run(place, "migrate", store, "--jetstream-store", server.store_dir, "--yes", expect=ExitCode.REFUSED)
    assert "in use" in refused.stderr
    server.stop()
    run(place, "migrate", store, "--jetstream-store", server.store_dir, "--yes")
    server.start()
    check_all(store, server.url)


@pytest.mark.golden
def test_the_nodes_of_a_cluster(golden_clusters: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """What a merge writes, and what a migration of the nodes themselves makes, are the same."""
    server, place = start_server(), tmp_path / "work"
    nodes = tmp_path / "nodes"
    shutil.copytree(golden_clusters / "lost_store_snapshot" / "nodes", nodes)
    shutil.rmtree(nodes / "c" / "data" / "orders")
    (nodes / "a" / "data" / "orders" / "msgs.1.dat").write_bytes(b"")  # its end is in Raft logs only
    refused = run(place, "migrate", nodes / "a", nodes / "b", nodes / "c", "--server", server.url, "--yes", expect=4)
    assert "30 messages are missing in the store" in " ".join(refused.stderr.split())
    words = ("--node", f"c:data={nodes / 'c' / 'data'},raft={nodes / 'c' / 'raft'}", "--server", server.url)
    planned = run(place, "migrate", "plan", nodes / "a", nodes / "b", *words, expect=1)
    assert "stantools migrate apply" in planned.stderr
    (plan,) = place.glob("*.yaml")
    assert [each.partition(":")[0] for each in read_plan(plan).source.nodes] == ["a", "b", "c"]
    run(place, "migrate", "apply", plan, "--server", server.url, "--yes", "--accept-loss", expect=5)
    run(place, "merge", *nodes.iterdir(), "--out", "merged", expect=5)
    assert streamed(server.url, "orders") == stored(place / "merged", "orders")
    assert streamed(server.url, "events_eu") == stored(place / "merged", "events.eu")
    found = asyncio.run(consumers_of(server.url, "events_eu")).values()
    assert len([each for each in found if each.config.durable_name]) == 3  # the others are of who has read it here
    run(place, "migrate", "verify", plan, "--server", server.url)
    assert "a node of the plan is missing" in moved(place, plan, nodes)


def moved(place: Path, plan: Path, nodes: Path) -> str:
    """What is said when nodes have gone away."""
    nodes.rename(nodes.with_name("elsewhere"))
    assert "the nodes of a cluster" in run(place, "migrate", "verify", plan, "--store", nodes, expect=2).stderr
    return run(place, "migrate", "verify", plan, expect=3).stderr


def test_stores_of_no_cluster_are_migrated_one_by_one(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(store, other)
    refused = run(tmp_path / "work", "migrate", store, other, "--out", "backup", "--yes", expect=4)
    assert "--stream-prefix '{store}-'" in refused.stderr


def test_an_existing_stream(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    words = ["migrate", store, "--server", server.url, "--yes"]
    channel = channels_of(store)[0]
    make_stream(server.url, stream_of(channel), "elsewhere", 3)
    refused = run(place, *words, expect=ExitCode.REFUSED)
    assert "already exists" in refused.stderr and "--replace" in refused.stdout + refused.stderr
    assert count_streams(server.url) == 1
    replaced = run(place, *words, "--replace")
    assert "replaced" in replaced.stdout
    check_all(store, server.url)


def make_stream(url: str, name: str, subject: str, messages: int) -> None:
    asyncio.run(fill(url, name, [(subject, b"%d" % number, {}) for number in range(messages)], subjects=[subject]))


def test_subjects_of_another_stream(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    channel = channels_of(store)[0]
    make_stream(server.url, "other", channel, 0)
    refused = run(tmp_path / "w", "migrate", store, "--server", server.url, "--yes", expect=ExitCode.REFUSED)
    assert "overlaps" in refused.stdout
    assert count_streams(server.url) == 1
    run(tmp_path / "v", "migrate", store, "--server", server.url, "--yes", "--subject-prefix", "stan.")


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_came_later_is_appended(interrupted: bool, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """The cut-over: a first migration of a copy, then the rest."""
    server, place = start_server(), tmp_path / "work"
    early, late = tmp_path / "early", tmp_path / "late"
    write_sample(late, SampleOptions(channels=1, messages=200, size=50, seed=9))
    shutil.copytree(late, early)
    (channel,) = channels_of(late)
    shorten(early / channel, 150)
    run(place, "migrate", early, "--server", server.url, "--yes", "--consumers", "none", "--accept-loss", expect=5)
    assert len(streamed(server.url, stream_of(channel))) == 150
    words = ["migrate", late, "--server", server.url, "--yes", "--consumers", "none"]
    run(place, *words, expect=ExitCode.REFUSED)
    if interrupted:
        # As a run with --append-missing leaves it that is killed at its first message.
        run(place, "migrate", "plan", late, "--server", server.url, "--consumers", "none", "--plan", "p.yaml")
        plan = read_plan(place / "p.yaml")
        with Journal(place / "p.yaml", plan.digest, str(plan.target)) as journal:
            journal.note(stream_of(channel), StreamState.STARTED, way="publish")
        assert "continued" in run(place, "migrate", "apply", "p.yaml", "--yes").stdout
    else:
        assert "appended" in run(place, *words, "--append-missing").stdout
    seen, have = streamed(server.url, stream_of(channel)), stored(late, channel)
    assert {n: each[1:] for n, each in seen.items()} == {n: each[1:] for n, each in have.items()}
    assert {n: seen[n] for n in range(1, 151)} == {n: have[n] for n in range(1, 151)}


def shorten(channel: Path, last: int) -> None:
    """Cuts a channel behind a message, at the boundary of a record."""
    reader = MessageReader(open_datastore(channel.parent).channel(channel.name), Crc())
    for message in reader.read(Selection(first=last + 1)):
        assert isinstance(message, StoredMessage)
        data = channel / message.file
        number = int(data.name.split(".")[1])
        with data.open("r+b") as file:
            file.truncate(message.offset)
        for path in channel.glob("msgs.*"):
            if path.suffix == ".idx" or int(path.name.split(".")[1]) > number:
                path.unlink()
        return


def test_appending_needs_an_equal_beginning(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    channel = channels_of(store)[0]
    make_stream(server.url, stream_of(channel), channel, 5)
    words = ["migrate", store, "--server", server.url, "--yes", "--channel", channel, "--append-missing"]
    refused = run(place, *words, expect=ExitCode.REFUSED)
    assert "Traceback" not in refused.stderr
    assert len(reads(server.url, stream_of(channel))) == 5


def test_a_damaged_store(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place, damaged = start_server(), tmp_path / "work", tmp_path / "damaged"
    shutil.copytree(store, damaged)
    channel = channels_of(store)[0]
    data = damaged / channel / "msgs.1.dat"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    words = ["migrate", damaged, "--server", server.url, "--yes"]
    refused = run(place, *words, expect=ExitCode.REFUSED)
    assert "--accept-loss" in refused.stderr
    assert count_streams(server.url) == 0
    run(place, *words, "--accept-loss", expect=ExitCode.LOSS)
    seen, have = streamed(server.url, stream_of(channel)), stored(store, channel)
    assert 0 < len(have) - len(seen) <= 2
    assert seen.items() <= have.items()


def test_many_channels_into_one_stream(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    words = ["migrate", store, "--server", server.url, "--yes", "--map", ">=ALL"]
    shown = run(place, *words)
    assert "renumbered" in shown.stdout
    seen = reads(server.url, "ALL")
    assert [m.sequence for m in seen] == list(range(1, len(seen) + 1))
    times = [m.timestamp for m in seen]
    assert times == sorted(times)
    for channel in channels_of(store):
        have = stored(store, channel)
        mine = [m for m in seen if m.subject == channel]
        assert [int(m.headers["Nats-Streaming-Sequence"]) for m in mine] == sorted(have)
        for m in mine:
            assert m.headers["Nats-Streaming-Channel"] == channel
            timestamp, digest, _ = have[int(m.headers["Nats-Streaming-Sequence"])]
            assert (m.timestamp, hashlib.sha256(m.data).hexdigest()) == (timestamp, digest)
            assert int(m.headers["Nats-Streaming-Timestamp"]) == timestamp
    run(place, "migrate", "verify", "shop-store.migration.yaml")
    infos = asyncio.run(consumers_of(server.url, "ALL"))
    assert len(infos) >= 2


@pytest.mark.parametrize("what", ["message", "consumer"])
def test_what_was_proven_and_changed_since(
    what: str, store: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """The same command again says so; --replace sets it right, with the journal and without."""
    server, place = start_server(), tmp_path / "work"
    words = ["migrate", store, "--server", server.url, "--yes", "--channel", "orders"]
    run(place, *words)
    for journal in (True, False):
        if what == "message":
            with_jetstream(server.url, lambda js: js.delete_message("orders", 7))
        else:
            with_jetstream(server.url, lambda js: js.consumer_delete("orders", "billing"))
        if not journal:
            (place / "shop-store.migration.yaml.journal").unlink()
        changed = run(place, *words, expect=ExitCode.FINDINGS if journal or what == "consumer" else ExitCode.REFUSED)
        assert "as planned" not in changed.stdout
        replaced = run(place, *words, "--replace")
        assert "replaced" in replaced.stdout
        assert streamed(server.url, "orders") == stored(store, "orders")
        assert "billing" in asyncio.run(consumers_of(server.url, "orders"))
        with_jetstream(server.url, delete_ephemeral)


async def delete_ephemeral(js: JetStream) -> None:
    """Deletes what reading with nats-py has left."""
    for name in await servers.consumer_names(js, "orders"):
        info = await js.consumer_info("orders", name)
        if info and "durable_name" not in info["config"]:
            await js.consumer_delete("orders", name)


def test_a_restored_stream_is_not_published_over(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    words = ["migrate", store, "--server", server.url, "--yes"]
    run(tmp_path / "a", *words)
    refused = run(tmp_path / "b", *words, "--via", "publish", expect=ExitCode.REFUSED)
    assert "already exists" in refused.stderr
    replaced = run(tmp_path / "b", *words, "--via", "publish", "--replace")
    assert replaced.stdout.count("replaced") == 3


def test_one_stream_is_refused_behind_the_others(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Exit code 4 says that nothing was changed, so it is not that."""
    server = start_server()
    make_stream(server.url, "orders", "orders", 5)
    done = run(
        tmp_path / "w", "migrate", store, "--server", server.url, "--yes", "--append-missing", expect=ExitCode.FINDINGS
    )
    assert "not the beginning" in done.stderr
    assert count_streams(server.url) == 3


def test_limits_apply_after_the_proof(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server, place = start_server(), tmp_path / "work"
    words = ["migrate", store, "--server", server.url, "--yes", "--max-msgs", 50]
    run(place, *words)
    for channel in channels_of(store):
        have, seen = stored(store, channel), streamed(server.url, stream_of(channel))
        assert seen == {n: have[n] for n in sorted(have)[-50:]}
        assert asyncio.run(state_of(server.url, stream_of(channel))).config.max_msgs == 50
    assert run(place, *words).stdout.count("complete before") == 3


def test_results_as_json(store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    done = run(tmp_path / "w", "migrate", store, "--server", server.url, "--yes", "-o", "json", "--progress", "json")
    result = json.loads(done.stdout)
    assert result["schema"] == 1 and result["clean"] is True
    assert {each["outcome"] for each in result["streams"]} == {"migrated"}
    assert all(each["compared"] == each["messages"] for each in result["streams"])
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines[-1]["done"] is True


def test_an_encrypted_store(
    golden_copy: Callable[[str], Path], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    root, server = golden_copy("encrypted_aes"), start_server()
    key = tmp_path / "key"
    key.write_text("a simple test key\n")
    words = ["migrate", root, "--server", server.url, "--yes"]
    refused = run(tmp_path / "a", *words, expect=ExitCode.REFUSED)
    assert "encrypted" in refused.stderr and "--encryption-key" in refused.stderr
    (tmp_path / "wrong").write_text("another key")
    wrong = run(tmp_path / "b", *words, "--encryption-key-file", tmp_path / "wrong", expect=ExitCode.UNREACHABLE)
    assert "key" in wrong.stderr
    run(tmp_path / "c", *words, "--encryption-key-file", key)
    no_key = run(tmp_path / "c", "migrate", "verify", default_plan_file(root), expect=ExitCode.USAGE)
    assert "key" in no_key.stderr
    run(tmp_path / "c", "migrate", "verify", default_plan_file(root), "--encryption-key-file", key)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["migrate", "missing", "--server", "nats://127.0.0.1:1"], 3, "missing"),
        (["migrate", "{store}", "--server", "nats://127.0.0.1:1", "--timeout", "1"], 3, "127.0.0.1:1"),
        (["migrate", "{store}", "--server", "ftp://host"], 2, "ftp"),
        (["migrate", "{store}", "--out", "a", "--jetstream-store", "b"], 2, "exclude"),
        (["migrate", "{store}", "--to", "kafka"], 2, "kafka"),
        (["migrate", "{store}", "--map", "a..b=C", "--out", "x"], 2, "a..b"),
        (["migrate", "{store}", "--map", ">=a.b", "--out", "x"], 2, "a.b"),
        (["migrate", "{store}", "--replace", "--append-missing", "--out", "x"], 2, "exclude"),
        (["migrate", "{store}", "--via", "publish", "--out", "x", "--yes"], 4, "publish"),
        (["migrate", "{store}", "--storage", "memory", "--out", "x", "--yes"], 4, "memory"),
        (["migrate", "{store}", "--channel", "nothing.>", "--out", "x"], 2, "nothing.>"),
        (["migrate", "{store}", "--override", "missing.yaml", "--out", "x"], 3, "missing.yaml"),
        (["migrate", "apply", "missing.yaml"], 3, "missing.yaml"),
        (["migrate", "verify", "{store}"], 3, ""),
    ],
)
def test_wrong_usage(words: list[str], code: int, says: str, store: Path, tmp_path: Path) -> None:
    result = run(tmp_path / "work", *(word.format(store=store) for word in words), expect=code)
    assert says in result.stderr
    assert result.stderr.count("error") == 1
    assert not [path for path in (tmp_path / "work").iterdir() if path.suffix != ".yaml"]


def test_help_shows_stages(tmp_path: Path) -> None:
    shown = run(tmp_path, "migrate", "--help").stdout
    for word in ("plan", "apply", "verify", "--server", "--out", "--via", "STORE"):
        assert word in shown
    assert "stages" not in run(tmp_path, "migrate", "apply", "--help").stdout


def test_plans_are_named_after_the_folder_too_and_old_names_are_found(store: Path, tmp_path: Path) -> None:
    words = ["migrate", "plan", store, "--out", tmp_path / "backups"]
    assert "the plan is in shop-store.migration.yaml" in run(tmp_path / "new", *words).stderr
    # What an earlier version has written is gone on with; that of another store is not.
    run(tmp_path / "old", *words, "--plan", "store.migration.yaml")
    assert "the plan is in store.migration.yaml" in run(tmp_path / "old", *words).stderr
    shutil.copytree(store, tmp_path / "other" / "store")
    words[2] = tmp_path / "other" / "store"
    assert "the plan is in other-store.migration.yaml" in run(tmp_path / "old", *words).stderr


def test_compression_without_its_package_is_refused_at_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    done = run(tmp_path / "w", "migrate", store, "--out", tmp_path / "b", "--compress", "--yes", expect=ExitCode.USAGE)
    assert "pip install 'cramjam" in done.stderr and not done.stdout
    assert not list((tmp_path / "w").iterdir())


def test_options_are_shown_in_groups(tmp_path: Path) -> None:
    said = run(tmp_path, "migrate", "--help").stdout
    titles = [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Options:",
        "Target, if not a running server:",
        "Connection:",
        "Selection and streams:",
        "Limits of the streams:",
        "Reading the store:",
        "A server whose files are out of reach:",
        "Beside a running server:",
        "Several stores:",
        "Execution:",
        "Output:",
        "Stage by stage:",
    ]
    options = re.findall(r"^  (?:-., )?(--[a-z-]+)", said[said.index("Options:") :], re.MULTILINE)
    declared = [each for each in cli.get_command(None, "migrate").commands["run"].params if isinstance(each, Option)]
    assert sorted(options) == sorted([*(each.opts[-1] for each in declared), "--help"])
