"""Channels copied through the protocol: what the server has, with its gaps, once, and further in a second run."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.errors import RefusedError, StoreUnreadableError, UsageError
from stantools.migration import protocol_copy
from stantools.migration.protocol_copy import channels_of, copy_channels, left_out
from stantools.migration.protocol_source import ProtocolSource
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.monitoring import MonitorError
from stantools.store.sample import SampleOptions, write_sample
from stantools.streaming.client import connect
from stantools.streaming.errors import NoServerError, StreamingError
from stantools.streaming.subscription_protocol import Start
from tests import servers
from tests.brokers import Broker
from tests.migration.test_migrate import run
from tests.tui.monitored import MonitoredServer, channel

CLUSTER = "test-cluster"


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Broker]:
    """A streaming server with three channels, the last with gaps; its store before the start is beside it."""
    write_sample(tmp_path / "store", SampleOptions(channels=3, messages=1500, size=40, seed=8, gaps=True))
    shutil.copytree(tmp_path / "store", tmp_path / "served")
    with Broker(tmp_path / "broker", "-st", "file", "-dir", tmp_path / "served", "-cid", CLUSTER, http=True) as broker:
        yield broker


def remote(broker: Broker, place: Path, *, monitor: bool = False) -> ProtocolSource:
    return ProtocolSource(broker.url, CLUSTER, None, broker.monitoring if monitor else "", place)


def copied(source: ProtocolSource, *channels: str) -> dict[str, int]:
    options = ConnectOptions((source.source,)).checked()
    return {each.name: each.messages for each in copy_channels(source, channels, options)}


def equal_messages(place: Path, *words: str) -> bool:
    """Whether store and copy differ in nothing but clients and subscriptions, which a copy cannot have."""
    found = json.loads(run(place, "diff", "store", "copy", "-o", "json", *words, expect=1).stdout)["findings"]
    return {each["code"] for each in found} <= {"subscription-differs", "client-differs"}


NAMES = ("orders", "telemetry.device-1", "audit.log")


def test_the_copy_has_what_the_server_has(tmp_path: Path, old: Broker) -> None:
    source = remote(old, tmp_path / "copy")
    counts = copied(source, *NAMES)
    assert counts["orders"] == 1500
    run(tmp_path, "verify", "copy")
    assert equal_messages(tmp_path)
    assert copied(source, *NAMES) == dict.fromkeys(NAMES, 0)

    async def publish() -> None:
        async with await connect(old.url, CLUSTER, "publisher") as client:
            for number in range(7):
                await client.publish("orders", b"%d" % number)

    asyncio.run(publish())
    assert copied(source, *NAMES) == {**dict.fromkeys(NAMES, 0), "orders": 7}
    run(tmp_path, "verify", "copy")


def test_a_slice_without_its_end_is_copied_again(tmp_path: Path, old: Broker) -> None:
    source = remote(old, tmp_path / "copy")
    copied(source, "orders")
    index = next((tmp_path / "copy" / "orders").glob("*.idx"))
    index.write_bytes(index.read_bytes()[:-17])
    assert copied(source, "orders")["orders"] > 0
    assert equal_messages(tmp_path, "--channel", "orders")


def test_a_message_lost_on_the_way_is_no_gap(tmp_path: Path, old: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not see message 700; the server has it."""
    plain = protocol_copy.Client.subscribe

    async def lossy(self, channel, handler, options):  # type: ignore[no-untyped-def]
        whole = options.max_in_flight > 1
        return await plain(self, channel, lambda m: None if whole and m.sequence == 700 else handler(m), options)

    monkeypatch.setattr(protocol_copy.Client, "subscribe", lossy)
    with pytest.raises(StreamingError, match="message 700 was lost on the way"):
        copied(remote(old, tmp_path / "copy"), "orders")
    monkeypatch.undo()
    assert copied(remote(old, tmp_path / "copy"), "orders")["orders"] > 0
    assert equal_messages(tmp_path, "--channel", "orders")


def test_monitoring_lists_channels_and_durables(tmp_path: Path, old: Broker) -> None:
    source = remote(old, tmp_path / "copy", monitor=True)
    assert sorted(channels_of(source, ())) == sorted(NAMES)
    assert channels_of(source, ("telemetry.>",)) == ["telemetry.device-1"]
    with pytest.raises(StoreUnreadableError, match="no such channel"):
        channels_of(source, ("other",))
    parts = left_out(source, NAMES)
    assert any(each.detail.startswith("durable billing of client 'app-") and each.channel == "orders" for each in parts)
    groups = [each for each in parts if each.what == "queue group"]
    assert any(each.detail.startswith("queue group team:all-gone: last sent") for each in groups)  # without members
    assert left_out(remote(old, tmp_path), NAMES) == list(protocol_copy.LIMITS)


def test_monitoring_takes_a_login_which_no_message_shows(tmp_path: Path) -> None:
    with MonitoredServer() as server:
        server.channels = [channel("orders", 3)]
        source = ProtocolSource("nats://host", CLUSTER, monitor=server.url.replace("://", "://me:secret@"))
        assert channels_of(source, ()) == ["orders"]
        assert server.headers["Authorization"] == "Basic bWU6c2VjcmV0"
        server.instead["*"] = (401, "text/plain", b"")
        with pytest.raises(MonitorError, match="refuses access") as refused:
            channels_of(source, ())
        assert "secret" not in str(refused.value)


def test_what_cannot_be_read_is_said(tmp_path: Path, old: Broker) -> None:
    for channels in ((), ("orders.*",)):
        with pytest.raises(UsageError, match="does not list channels"):
            remote(old, tmp_path).check(channels)
    remote(old, tmp_path).check(("orders",))
    remote(old, tmp_path, monitor=True).check(())
    with pytest.raises(NoServerError):
        copied(ProtocolSource(old.url, "other", copy=tmp_path / "other"), "orders")
    assert not (tmp_path / "other").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(RefusedError, match="no copy of test-cluster"):
        copied(remote(old, tmp_path / "mine"), "orders")
    assert Start.first() != Start.last_received()


def test_a_second_run_migrates_what_is_new(tmp_path: Path, old: Broker) -> None:
    """Of a copy that has grown, the streams are appended to; the plan of the first run is kept aside."""
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip(f"nats-server {servers.NEWEST} is not here")
    words = ("migrate", "--from", old.url, "--cluster-id", CLUSTER, "--channel", "orders", "--yes", "-o", "json")
    with servers.NatsServer(tmp_path / "new", servers.NEWEST) as new:
        run(tmp_path, *words, "--server", new.url)

        async def publish() -> None:
            async with await connect(old.url, CLUSTER, "publisher") as client:
                for number in range(3):
                    await client.publish("orders", b"later %d" % number)

        asyncio.run(publish())
        run(tmp_path, *words, "--dry-run", "--server", new.url)
        result = json.loads(run(tmp_path, *words, "--server", new.url).stdout)
        assert [(each["outcome"], each["messages"]) for each in result["streams"]] == [("appended", 1503)]
        assert list(tmp_path.glob("*.earlier"))
    refused = run(tmp_path, *words, "--follow", expect=2)
    assert "--from does without" in refused.stderr
    assert "exclude each other" in run(tmp_path, *words, "store", expect=2).stderr
