"""Streams that follow a store while its server goes on, with real processes."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from stantools.errors import ExitCode
from stantools.migration.followed_store import FollowedStore
from stantools.migration.plan.planfile import read_plan
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.store_follower import StoreFollower
from stantools.store.limits import SliceLimits
from stantools.store.sample import SampleOptions, write_sample
from tests import natsclient
from tests.conftest import others_slow
from tests.migration.leaving import CHANNEL, WAIT, Migration, Rehearsal, in_stream
from tests.migration.test_migrate import Ended, run
from tests.pipeline.tables.followed import Server
from tests.servers import NEWEST, NatsServer, available
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(NEWEST not in available(), reason=f"nats-server {NEWEST} is not in .servers")


async def test_publisher_and_subscriber_move_over(tmp_path: Path, start_server: Callable[..., NatsServer]) -> None:
    rehearsal = Rehearsal(tmp_path, start_server(), 0)
    rehearsal.migration.words += ["-o", "json"]
    result = json.loads(await rehearsal.run([]))
    assert result["clean"]
    assert result["cutover"]["carried"] > 0
    if delay := result["cutover"]["delay"]:  # nothing may come while a busy machine follows
        assert 0 < delay <= result["cutover"]["longest_delay"]
    assert result["cutover"]["why"] == "the server has stopped"  # and was seen before anything was loaded
    assert 0 < result["cutover"]["seconds"] < WAIT
    assert not result["cutover"]["written_since"]
    plan = tmp_path / "plan.yaml"
    words = [sys.executable, "-m", "stantools", "migrate"]
    # What the users have done since is all that differs.
    proof = subprocess.run([*words, "verify", str(plan)], capture_output=True, text=True, timeout=WAIT)
    assert proof.returncode == ExitCode.FINDINGS
    different = {line.split(":")[0] for line in proof.stdout.splitlines() if line.startswith(("message-", "consumer-"))}
    assert different <= {"message-extra", "consumer-position"}
    again = subprocess.run(
        [*words, *rehearsal.migration.words, "--follow"], capture_output=True, text=True, cwd=tmp_path
    )
    assert again.returncode == ExitCode.REFUSED
    assert "belong to their users" in again.stderr


def test_the_server_stops_while_streams_are_loaded(
    tmp_path: Path, start_server: Callable[..., NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sample(tmp_path / "store", SampleOptions(channels=1, messages=10))
    running, begin = [True], StoreFollower.begin

    async def load(following: StoreFollower, streams: Sequence[PreparedStream]) -> None:
        await begin(following, streams)
        running.clear()

    monkeypatch.setattr(StoreFollower, "begin", load)
    monkeypatch.setattr(FollowedStore, "used", lambda _: bool(running))
    words = ("migrate", tmp_path / "store", "--server", start_server().url, "--follow", "--cutover", "--yes")
    result = run(tmp_path, *words, "-o", "json")
    report = json.loads(result.stdout)
    assert report["cutover"]["why"] == "the server has stopped"
    assert [each["outcome"] for each in report["streams"]] == ["migrated"]  # by this run, not before


@pytest.mark.parametrize(
    ("faults", "words"),
    [(("migration", "cutover"), ("--via", "publish")), (("source", "target", "migration"), ())],
    ids=["publish", "restore"],
)
async def test_killed_on_the_way(
    tmp_path: Path, start_server: Callable[..., NatsServer], faults: Sequence[str], words: Sequence[str]
) -> None:
    rehearsal = Rehearsal(tmp_path, start_server(), 1)
    rehearsal.migration.words += words
    await rehearsal.run(faults)


@pytest.mark.slow
async def test_twenty_rounds_with_kills(tmp_path: Path, start_server: Callable[..., NatsServer]) -> None:
    delays: list[float] = []
    pauses: list[float] = []
    for seed in range(20):
        rng = random.Random(seed)
        version = rng.choice(available())
        faults = rng.choices(["migration", "migration", "target", "source"], k=rng.randint(1, 4))
        print(f"round {seed}: nats-server {version}, {faults}")
        rehearsal = Rehearsal(tmp_path / str(seed), start_server(version), seed)
        rehearsal.migration.words += ["-o", "json"]
        faults += rng.choice([(), ("cutover",)])
        said = await rehearsal.run(faults)
        if said and "cutover" not in faults:
            delays += filter(None, [json.loads(said)["cutover"]["delay"]])
            pauses.append(rehearsal.publisher.moved)
    # Usually, so that one round on a machine that is busy with something else does not count.
    print(f"in the streams after {sorted(delays)} s; publishers paused for {sorted(pauses)} s")
    assert median(delays) < 1.0
    assert median(pauses) < 2.0


def migrate(folder: Path, *words: object, expect: int = 0) -> Ended:
    return run(folder, "migrate", *words, "--progress", "none", expect=expect)


@pytest.mark.golden
def test_the_nodes_of_a_cluster(golden_clusters: Path, start_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """The store of one is followed; in the end all of them tell what there is, and where durables stand."""
    server, nodes = start_server(), golden_clusters / "lost_store_snapshot" / "nodes"
    words = (nodes / "a", nodes / "b", nodes / "c", "--server", server.url, "--plan", "plan.yaml")
    done = migrate(tmp_path, *words, "--cutover", "--yes")
    assert "no server was found" in done.stdout
    refused = migrate(tmp_path, *words, "--cutover-when-idle", "1s", "--yes", expect=2)
    assert "must be stopped" in refused.stderr
    migrate(tmp_path, "verify", "plan.yaml")
    held = {each.name: each.messages for each in read_plan(tmp_path / "plan.yaml").streams}
    assert held
    assert sum(held.values()) > 0
    assert any(each.consumers for each in read_plan(tmp_path / "plan.yaml").streams)


async def test_limits_that_remove_before_they_are_read(tmp_path: Path, start_server: Callable[..., NatsServer]) -> None:
    server, store = start_server(), Server(tmp_path / "store", limits=SliceLimits(4, 0))
    store.publish(20)
    migration = Migration(tmp_path, store.root, server.url)

    async with natsclient.connected(server.url) as client:
        js = client.jetstream(timeout=WAIT)
        migration.start("--follow")
        await eventually(lambda: holds(js, 20))
        migration.kill()
        store.publish(12)
        while store.slices()[0] < 8:
            store.remove_oldest()
        other = Server(store.root, "new", SliceLimits(4, 0))
        other.publish(3)
        migration.start("--cutover-when-idle", "1s")
        code, out, err = await migration.finish()
        assert code == 0, out + err
        held = await in_stream(js)
        assert [int(data.split()[0]) for _, data in held] == [sequence for sequence, _ in held] == [29, 30, 31, 32]
        assert len(await in_stream(js, "new")) == 3
    said = out + err
    assert (
        "orders: 8 messages, sequences 21 to 28, were removed by the server's limits before they were read"
        in " ".join(said.split())
    )
    assert "removed: orders: 8 messages" in said
    words = [sys.executable, "-m", "stantools", "migrate", "verify", "plan.yaml"]
    proof = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=WAIT)
    assert proof.returncode == 0, proof.stdout + proof.stderr


async def holds(js: JetStreamContext, last: int) -> bool:
    with contextlib.suppress(NatsError):
        return (await js.stream_info(CHANNEL)).state.last_seq >= last
    return False


@pytest.mark.parametrize("number", others_slow([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_ctrl_c_is_the_normal_end(
    number: signal.Signals, tmp_path: Path, start_server: Callable[..., NatsServer]
) -> None:
    write_sample(tmp_path / "store", SampleOptions(channels=2, messages=50, size=30, seed=3))
    migration = Migration(tmp_path, tmp_path / "store", start_server().url, "-o", "json")
    for _ in range(2):  # the same command continues
        migration.start("--follow")
        assert migration.process and migration.process.stderr
        told: list[str] = []
        while "in step: 0 behind" not in (line := migration.process.stderr.readline()):
            assert line, told
            told.append(line)
        migration.process.send_signal(number)
        out, err = migration.process.communicate(timeout=WAIT)
        assert migration.process.returncode == 0, err
        assert "error" not in err
        document = json.loads(out)
        assert document["ended"]["behind"] == 0
        assert {each["outcome"] for each in document["streams"]} == {"followed"}
        assert [each["messages"] for each in document["streams"]] == [50, 50]
    as_text = Migration(tmp_path, tmp_path / "store", migration.words[2])
    as_text.start("--follow")
    assert as_text.process and as_text.process.stderr
    while "in step" not in as_text.process.stderr.readline():
        assert as_text.running
    as_text.process.send_signal(number)
    out, _ = as_text.process.communicate(timeout=WAIT)
    assert "ended by Ctrl-C, in step: 0 behind" in out
    assert " 0 B" not in out  # of streams that hold messages
    assert "next: the same command continues; with --cutover" in out


def test_what_cannot_be_followed(tmp_path: Path, start_server: Callable[..., NatsServer]) -> None:
    server = start_server()
    for channel in ("orders.eu", "orders.us"):
        Server(tmp_path / "store", channel).publish(3)
    to = ("store", "--server", server.url, "--yes")
    assert "running server" in migrate(tmp_path, "store", "--out", "backup", "--follow", "--yes", expect=2).stderr
    refused = migrate(tmp_path, *to, "--map", "orders.*=ALL", "--follow", expect=ExitCode.REFUSED)
    assert "ordered by time" in refused.stderr
    migrate(tmp_path, "plan", "store", "--server", server.url, "--plan", "rest.yaml")
    refused = migrate(tmp_path, *to, "--plan", "rest.yaml", "--follow", expect=ExitCode.REFUSED)
    assert "the plan of a stopped store" in refused.stderr
