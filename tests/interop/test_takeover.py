"""Stores taken over into the streams of a broker: what clients are given is what the broker gives them on the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode
from stantools.format.crc import Crc
from stantools.migration.source import StoreSource, open_source
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, write_sample
from tests import servers
from tests.brokers import Broker
from tests.conftest import load_expected, others_slow
from tests.interop.talker import Client, Message, NobodyAnsweredError, Subscription, Talker
from tests.migration.test_migrate import in_process, run
from tests.servers import Cluster, NatsServer
from tests.waiting import until

#: Slices, limits, gaps that a server has filled, a first message that is not number 1, encryption, old releases, and
#: every kind of subscription.
CASES = [
    "archived_bak",
    "basic",
    "compaction",
    "crc_castagnoli",
    "damage_base",
    "durables",
    "encrypted_aes",
    "gap_filled",
    "limits_bytes",
    "limits_msgs",
    "v038",
]
PAIRS = [
    *others_slow(((case, servers.NEWEST) for case in CASES), ("durables", "encrypted_aes", "gap_filled")),
    *others_slow(((case, servers.OLDEST) for case in ("durables", "limits_msgs")), ("limits_msgs",)),
]
END = b"the end"
#: Nothing comes again because the machine is busy.
UNHURRIED: dict[str, Any] = {"ack_wait_in_secs": 3600, "max_in_flight": 10_000}
CLUSTER = "test-cluster"
#: The command, which dies as by KILL at its nth request to JetStream: before it is sent, or after it was answered.
CUT = """
import itertools, os, sys
from stantools.cli.main import cli
from stantools.nats.jetstream import JetStream

ask, numbers, last = JetStream.api, itertools.count(1), int(sys.argv[1])

async def api(self, *given, **named):
    number = next(numbers)
    if number == last and last % 2:
        os._exit(99)
    try:
        return await ask(self, *given, **named)
    finally:
        if number == last:
            os._exit(99)

JetStream.api = api
cli(sys.argv[2:])
"""


def nats_server(place: Path, version: str) -> NatsServer:
    if version not in servers.available():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py fetches it)")
    # One message of a store is as large as a NATS server takes it by default, and more goes with it to subscribers.
    return NatsServer(place, version, {"max_payload": 2 << 20})


@dataclass
class Case:
    """A store, and how servers, and the command, are to be told what is not in it."""

    root: Path
    source: StoreSource
    serve: Sequence[object] = ()
    read: Sequence[object] = ()
    nodes: Sequence[Path] = ()  # what the store was merged from

    @classmethod
    def of(cls, root: Path, **more: Any) -> Case:
        return cls(root, open_source(open_datastore(root)), **more)

    @classmethod
    def golden(cls, case: str, root: Path) -> Case:
        options = load_expected(case)["options"]
        crc, key = Crc(options["file_crc_poly"]), (options.get("encryption") or {}).get("key")
        serve: list[object] = ["-file_crc_poly", crc.polynomial]
        serve += ["-mm", options["max_msgs"], "-mb", options["max_bytes"]]
        read: list[object] = ["--max-msgs", options["max_msgs"]]
        if key:
            serve += ["--encrypt", "--encryption_cipher", options["encryption"]["cipher"], "--encryption_key", key]
            read += ["--keep-encrypted"]
        return cls(root, open_source(open_datastore(root, crc)), serve, read)

    @property
    def cluster(self) -> str:
        return os.fsdecode(self.source.plan.server.cluster_id)

    @property
    def durables(self) -> Iterator[tuple[str, str, str, str]]:
        """Channel, client, durable, queue group, each once."""
        seen = set()
        for channel in self.source.channels:
            for each in channel.subscriptions:
                state = each.state
                durable, _, group = state.q_group.decode().rpartition(":")
                client = "" if group else state.client_id.decode()
                found = channel.name, client, durable or state.durable_name.decode(), group
                if state.is_durable and found not in seen:
                    seen.add(found)
                    yield found


def heard(messages: list[Message]) -> list[tuple[Any, ...]]:
    """What subscribers may see of messages, but for the time of one that was published here."""
    return [
        (each.sequence, each.data, each.reply, each.redelivered, each.data != END and each.timestamp)
        for each in messages
    ]


def account(case: Case, broker: Broker, port: int) -> dict[Any, Any]:
    """What a broker says and delivers: clients, limits, every message, and to each durable what comes next."""
    told: dict[Any, Any] = {
        "clients": sorted(each["id"] for each in broker.figures("streaming/clientsz?limit=10000")["clients"] or ())
    }
    for channel in case.source.channels:
        state = broker.figures(f"streaming/channelsz?channel={channel.name}&subs=1")
        told[channel.name] = [
            *(state[name] for name in ("msgs", "first_seq", "last_seq")),
            sorted(
                [str(each.get(name)) for name in ("client_id", "queue_name", "durable_name", "is_durable")]
                for each in state.get("subscriptions") or ()
            ),
        ]
    with Talker(port) as nats:
        reader = Client(nats, "a-reader", cluster=case.cluster)
        for channel in case.source.channels:
            name = channel.raw_name
            reader.store(name, END)
            told[channel.name, "messages"] = heard(to_the_end(reader.subscribe(name, **UNHURRIED)))
        # Whoever was connected comes back, as no client does that has died: all that it had is free for others.
        back = {each: Client(nats, each, cluster=case.cluster) for each in told["clients"]}
        for number, (channel, client_id, durable, group) in enumerate(case.durables):
            client = back.get(client_id) or Client(nats, client_id or f"worker-{number}", cluster=case.cluster)
            back.setdefault(client_id or f"worker-{number}", client)
            fields = {"durable_name": durable.encode(), "q_group": group.encode()} | UNHURRIED
            messages = to_the_end(client.subscribe(channel.encode(), **fields))
            told[channel, client_id, durable, group] = heard(messages)
    return told


def to_the_end(subscription: Any) -> list[Message]:
    """Returns messages up to the one that was published last."""
    until(lambda: any(each.data == END for each in subscription.messages))
    return sorted(subscription.settled(len(subscription.messages)), key=lambda each: (each.sequence, each.redelivered))


def take_over(case: Case, url: str, place: Path, *words: object, expect: int = 0) -> str:
    stores = case.nodes or [case.root]
    options = ["--server", url, "--for-broker", case.cluster, "--yes", *case.read]
    done = run(place, "migrate", *stores, *options, *words, expect=expect)
    return done.stdout + done.stderr


def on_files(case: Case, place: Path) -> dict[Any, Any]:
    """What a broker says and delivers that serves a copy of the store itself."""
    shutil.copytree(case.root, place / "served")
    words = ("-cid", case.cluster, "-st", "FILE", "-dir", place / "served", *case.serve)
    with Broker(place / "file", *words, http=True) as broker:
        return account(case, broker, broker.port)


def on_streams(case: Case, place: Path, url: str) -> Broker:
    words = ("-cid", case.cluster, "-ns", url, "-st", "jetstream", "-dir", place / "copy", *case.serve)
    return Broker(place / "streams", *words, http=True)


def compare(case: Case, version: str, place: Path) -> None:
    expected = on_files(case, place)
    with nats_server(place / "nats", version) as server:
        said = take_over(case, server.url, place / "work")
        assert f"stan-broker -st jetstream -cid {case.cluster}" in said
        with on_streams(case, place, server.url) as broker:
            found = account(case, broker, server.port)
            assert broker.stop() == 0
            broker.start()
            assert broker.stop() == 0
    assert found == expected


@pytest.mark.parametrize(("case", "version"), PAIRS)
def test_the_same_for_clients(case: str, version: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    compare(Case.golden(case, golden_copy(case)), version, tmp_path)


@pytest.mark.golden
@pytest.mark.parametrize("cluster", others_slow(["snapshots", "killed_under_load"], ["snapshots"]))
def test_nodes_of_a_cluster(cluster: str, golden_clusters: Path, tmp_path: Path) -> None:
    """They are merged for it; the store to compare with is what a merge writes."""
    shutil.copytree(golden_clusters / cluster / "nodes", tmp_path / "nodes")
    nodes = sorted((tmp_path / "nodes").iterdir())
    run(tmp_path / "work", "merge", *nodes, "--out", tmp_path / "merged")
    compare(Case.of(tmp_path / "merged", nodes=nodes), servers.NEWEST, tmp_path)


def test_nothing_is_made_of_a_channel_with_holes(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """What to do is said, and doing it helps."""
    about = Case.golden("gap_truncated_slice", golden_copy("gap_truncated_slice"))
    holes = about.source.channels[0].sequences.holes()
    with nats_server(tmp_path / "nats", servers.NEWEST) as server:
        said = " ".join(take_over(about, server.url, tmp_path / "work", expect=ExitCode.REFUSED).split())
        assert "4 messages are missing, but a broker's streams must not have gaps" in said
        assert "--fill-gaps" in said
        run(tmp_path / "work", "salvage", about.root, "--fill-gaps", "--out", tmp_path / "filled")
        about.root = tmp_path / "filled"
        take_over(about, server.url, tmp_path / "work")
        with on_streams(about, tmp_path, server.url) as broker, Talker(server.port) as nats:
            client = Client(nats, "me")
            messages = client.subscribe(b"gapcut").wait(35)
            assert [each.sequence for each in messages] == list(range(1, 36))
            assert all(
                messages[sequence - 1].data == b"" for first, last in holes for sequence in range(first, last + 1)
            )
            assert broker.stop() == 0


@pytest.mark.parametrize(("step", "least"), others_slow([(17, 2), (5, 5)], [17]))
def test_killed_at_its_requests(tmp_path: Path, step: int, least: int) -> None:
    """The same command goes on, whatever was done; the state comes last; and there is nothing that is there twice."""
    root = tmp_path / "store"
    write_sample(root, SampleOptions(channels=2, messages=60, size=40, seed=3))
    about = Case.of(root)
    expected = on_files(about, tmp_path)
    words = ["migrate", root, "--server", None, "--for-broker", CLUSTER, "--yes"]
    work, killed = tmp_path / "work", 0
    work.mkdir()
    with nats_server(tmp_path / "nats", servers.NEWEST) as server:
        words[3] = server.url
        for last in range(2, 100, step):
            done = in_process(work, sys.executable, "-c", CUT, last, *words)
            assert done.returncode in (0, 99), done.stdout + done.stderr
            if not done.returncode:
                break
            killed += 1
        assert killed >= least
        assert "complete before" in run(work, *words).stdout
        with on_streams(about, tmp_path, server.url) as broker:
            assert account(about, broker, server.port) == expected
            # It is the broker's now, and stays as it is.
            assert run(work, *words, expect=ExitCode.FINDINGS).stdout.count("stream-state") == 2
            assert broker.stop() == 0


@pytest.mark.slow
def test_a_group_on_three_servers(tmp_path: Path) -> None:
    """Replicated, for brokers of which one leads; the next one goes on with the durable where the first has ended."""
    root = tmp_path / "store"
    write_sample(root, SampleOptions(names=["a"], messages=30, size=40, seed=3, no_subscriptions=True))
    if servers.NEWEST not in servers.available():
        pytest.skip(f"nats-server {servers.NEWEST} is not here (python tests/servers.py fetches it)")
    with Cluster(tmp_path / "nats", servers.NEWEST) as cluster:
        url, port = cluster.urls[0], cluster.servers[0].port
        words = ["--server", url, "--for-broker", CLUSTER, "--replicas", 3, "--yes"]
        run(tmp_path / "work", "migrate", root, *words)
        nodes = [
            Broker(
                tmp_path / name, "-ns", ",".join(cluster.urls), "-st", "jetstream", "-dir", tmp_path / f"copy-{name}",
                "-clustered", "-cluster_node_id", name, "-jetstream_replicas", 3,
            )
            for name in "xy"
        ]  # fmt: skip
        first, second = nodes
        try:
            first.start()
            second.start(wait=False)
            until(lambda: "following until it leads" in second.said())
            with Talker(port) as nats:
                client = Client(nats, "me")
                durable = client.subscribe(b"a", durable_name=b"d", max_in_flight=10)
                assert [each.sequence for each in durable.wait(10)] == list(range(1, 11))
                for sequence in range(1, 9):
                    durable.ack(sequence)
                until(lambda: durable.sequences[-1] == 18)
                assert first.stop() == 0
                until(lambda: "server became leader" in second.said())
                found: list[Subscription] = []

                def subscribes() -> bool:
                    # The servers may not have told each other yet who listens now.
                    with contextlib.suppress(NobodyAnsweredError):
                        found.append(client.subscribe(b"a"))
                    return bool(found)

                until(subscribes)
                assert [each.sequence for each in found[0].wait(30)] == list(range(1, 31))
            assert second.stop() == 0
        finally:
            for node in nodes:
                if node.process is not None and node.process.poll() is None:
                    node.kill()
