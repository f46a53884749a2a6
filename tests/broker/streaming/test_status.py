"""What monitoring shows: shapes and order as in the original's samples (server-operations.md section 14)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.stores.memory import MemoryStore
from broker.streaming import status
from stantools.store.limits import PatternLimits, StoreLimits
from tests.broker.streaming.world import World
from tests.conftest import GOLDEN


@pytest.fixture
def world() -> World:
    limits = StoreLimits(per_channel={"b.*": PatternLimits(max_msgs=7)})
    world = World(store=MemoryStore(limits))
    world.connect(b"one")
    world.connect(b"two")
    world.publish(b"b.c", b"x", client=b"one")
    world.subscribe(b"a", b"one", durable_name=b"off").close()
    world.subscribe(b"a", b"one", durable_name=b"on", max_in_flight=3)
    world.subscribe(b"a", b"two", q_group=b"g", durable_name=b"d").close()
    world.subscribe(b"a", b"two", q_group=b"q")
    world.subscribe(b"b.c", b"two", max_in_flight=1)
    return world


def test_serverz(world: World) -> None:
    world.advance(125)
    view = status.serverz(world.server)
    assert view["state"] == "STANDALONE"
    assert view["uptime"] == "2m5s"
    assert (view["clients"], view["subscriptions"], view["channels"]) == (2, 5, 2)
    assert (view["total_msgs"], view["in_msgs"]) == (1, 1)
    assert view["out_msgs"] == 5, "one and four times again"


def test_storez(world: World) -> None:
    view = status.storez(world.server)
    assert view["type"] == "MEMORY"
    assert view["limits"]["channels"] == {
        "b.*": {
            "max_msgs": 7,
            "max_bytes": 1_024_000_000,
            "max_age": 0,
            "max_subscriptions": 1000,
            "max_inactivity": 0,
        }
    }


def test_clientsz(world: World) -> None:
    view = status.clientsz(world.server, offset=1, limit=1)
    assert (view["offset"], view["limit"], view["count"], view["total"]) == (1, 1, 1, 2)
    assert view["clients"] == [{"id": "two", "hb_inbox": "_HB.two", "subs_count": 2}]
    assert status.clientsz(world.server, offset=7)["clients"] == []
    assert status.clientsz(world.server, offset=-1, limit=0)["limit"] == 1024
    shown = status.client(world.server, b"two", subs=True)
    assert shown is not None
    assert list(shown["subscriptions"]) == ["a", "b.c"]
    assert status.client(world.server, b"nobody") is None


def test_channelsz(world: World) -> None:
    view = status.channelsz(world.server)
    assert view["names"] == ["a", "b.c"]
    assert "names" not in status.channelsz(world.server, offset=5)
    full = status.channelsz(world.server, subs=True)
    assert [each["name"] for each in full["channels"]] == ["a", "b.c"]
    (first, _) = full["channels"]
    assert first["subs_count"] == 4
    shown = [
        (each["client_id"], each.get("durable_name"), each.get("queue_name"), each["is_offline"])
        for each in first["subscriptions"]
    ]
    assert shown == [
        ("one", "on", None, False),
        ("one", "off", None, True),
        ("two", None, "d:g", True),
        ("two", None, "q", False),
    ]
    assert status.channel(world.server, b"A") is None
    stalled = status.channel(world.server, b"b.c", subs=True)
    assert stalled is not None
    assert (stalled["subscriptions"][0]["pending_count"], stalled["subscriptions"][0]["is_stalled"]) == (1, True)


@pytest.mark.golden
def test_shapes_are_the_original_ones(world: World) -> None:
    samples = [
        json.loads((directory / "expected.json").read_text()).get("monitoring") or {}
        for directory in sorted(GOLDEN.iterdir())
        if (directory / "expected.json").is_file()
    ]
    ours = {
        "serverz": status.serverz(world.server),
        "storez": status.storez(world.server),
        "clientsz": status.clientsz(world.server, subs=True),
        "channelsz": status.channelsz(world.server, subs=True),
    }
    seen = set()
    optional = {"subscriptions", "channels", "durable_name", "queue_name", "role", "node_id", "names"}

    def compare(sample: Any, own: Any) -> None:
        if isinstance(sample, dict) and isinstance(own, dict):
            keys = [key for key in sample if key not in optional]
            assert keys == [key for key in own if key not in optional]
            for key in sample.keys() & own.keys():
                one, other = sample[key], own[key]
                if key == "subscriptions" and isinstance(one, dict):
                    # By channel, whose names are not ours.
                    one, other = next(iter(one.values())), next(iter(other.values()))
                compare(one, other)
        elif isinstance(sample, list) and isinstance(own, list):
            if sample and own:
                compare(sample[0], own[0])
        else:
            assert type(sample) is type(own)

    for sample in samples:
        for name, view in ours.items():
            if isinstance(sample.get(name), dict):
                seen.add(name)
                compare(sample[name], view)
    assert seen == set(ours)
