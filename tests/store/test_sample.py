"""Sample stores: the same for the same options, healthy unless asked otherwise, damaged as asked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import StoreUnwritableError, UsageError
from stantools.format.crc import CASTAGNOLI, Crc
from stantools.format.encryption import ChannelCipher
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.overview import overview
from stantools.inspection.verify import verify
from stantools.secret import Secret
from stantools.store.damage import DAMAGES
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, channel_names, write_sample
from stantools.store.sublog import SubStatus
from tests.store.slices import all_messages

IEEE = Crc()


def digest(root: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        state.update(str(path.relative_to(root)).encode() + b"\0")
        if path.is_file():
            state.update(path.read_bytes())
    return state.hexdigest()


def sample(root: Path, **options: Any) -> Path:
    return write_sample(root, SampleOptions(**options)).path


def test_the_same_options_give_the_same_bytes(tmp_path):
    options = {"messages": 50, "gaps": True, "damage": ("flipped-byte", "garbage-tail"), "encryption_key": Secret(b"k")}
    first = digest(sample(tmp_path / "a", **options))
    assert digest(sample(tmp_path / "b", **options)) == first
    assert digest(sample(tmp_path / "c", **options | {"seed": 2})) != first


def test_the_bytes_are_those_of_earlier_releases(tmp_path):
    """Whoever refers to a sample by its options means these bytes; change this only on purpose."""
    assert digest(sample(tmp_path / "a")) == "258ea61921742ef3109c82d681890ccff21989da4a3c339ff13c29f0ed81b6fe"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"messages": 0},
        {"messages": 1},
        {"messages": 7, "size": 0},
        {"size": 1},
        {"size": 20_000, "messages": 20},
        {"channels": 8, "messages": 3},
        {"names": ["a", "b.c"], "gaps": True},
        {"polynomial": CASTAGNOLI},
        {"no_subscriptions": True},
        {"slice_msgs": 7},
        {"slice_bytes": 2048},
    ],
)
def test_a_sample_is_healthy_and_a_server_takes_it_as_it_is(tmp_path, options):
    have = SampleOptions(**options)
    result = write_sample(tmp_path / "store", have)
    store = open_datastore(result.path, Crc(have.polynomial))
    verdict = verify(store)
    assert {f.code for f in verdict.findings if f.severity != "info"} <= ({"sequence-gap"} if have.gaps else set())
    assert sorted(store.channel_names) == sorted(result.channels) == sorted(channel_names(have))
    for truncate in (False, True):
        predicted = forecast(store, ServerOptions(crc=Crc(have.polynomial)), truncate=truncate)
        assert predicted.starts, predicted.error
        assert set(predicted.as_json()["files_changed"]) <= {".truncate.lck"}
    view = overview(store)
    assert [len(channel.slices) for channel in view.channels] == [
        len(list((result.path / channel.name).glob("*.dat"))) - 1 for channel in view.channels
    ]
    fillers = 5 if have.gaps else 0
    assert sum(channel.count for channel in view.channels) == result.messages + fillers
    assert result.messages == have.messages * len(channel_names(have))


def test_what_is_in_it(tmp_path):
    root = sample(tmp_path / "store", messages=200)
    orders, telemetry, audit = (
        all_messages(root / name, name.encode(), IEEE) for name in ("orders", "telemetry.device-1", "audit.log")
    )
    assert all(json.loads(data)["order"] == sequence for sequence, _, _, data in orders)
    assert {len(data) for _, _, _, data in orders} == {128}
    assert {len(data) for _, _, _, data in telemetry} == {0, 128}
    assert sum(bool(reply) for _, _, reply, _ in telemetry) == 40
    assert all(data.isalnum() for _, _, _, data in audit)
    for each in (orders, telemetry, audit):
        assert [sequence for sequence, *_ in each] == list(range(1, 201))
        assert [time for _, time, _, _ in each] == sorted(time for _, time, _, _ in each)


def test_every_kind_of_subscription_is_there(tmp_path):
    view = overview(open_datastore(sample(tmp_path / "store", messages=100)))
    assert [bytes(client.id) for client in view.clients] == [b"app-1", b"app-2"]
    orders = next(channel for channel in view.channels if channel.name == "orders")
    states = orders.subscriptions
    assert {each.status for each in states} == {SubStatus.ACTIVE, SubStatus.OFFLINE_DURABLE, SubStatus.SHADOW}
    assert {bytes(each.state.q_group) for each in states} == {b"", b"workers", b"team:durable", b"team:all-gone"}
    assert all(each.pending for each in states)
    assert all(max(each.pending) <= each.state.last_sent <= 100 for each in states)


def test_gaps_are_in_the_last_channel(tmp_path):
    root = sample(tmp_path / "store", messages=9, gaps=True)
    assert [each[0] for each in all_messages(root / "orders", b"orders", IEEE)] == list(range(1, 10))
    have = all_messages(root / "audit.log", b"audit.log", IEEE)
    assert [each[0] for each in have] == [101, 102, 103, *range(104, 109), 109, 110, 111, 119, 120, 121]
    assert all(not data and time == have[8][1] for _, time, _, data in have[3:8])


def test_encryption(tmp_path):
    plain = sample(tmp_path / "plain", messages=5, channels=1)
    for cipher, code in (("AES", 1), ("CHACHA", 2)):
        root = sample(tmp_path / cipher, messages=5, channels=1, encryption_key=Secret(b"secret"), cipher=cipher)
        reader = ChannelCipher(b"secret", b"orders")
        stored = all_messages(root / "orders", b"orders", IEEE)
        assert {data[0] for *_, data in stored} == {code}
        assert [reader.decrypt(data) for *_, data in stored] == [
            data for *_, data in all_messages(plain / "orders", b"orders", IEEE)
        ]


SERVER_STARTS = {
    "cut-payload": False,
    "lost-index": True,
    "flipped-byte": True,
    "flipped-last": False,
    "lost-server": True,
    "damaged-server": False,
    "empty-clients": False,
    "damaged-subs": False,
    "cut-subs": False,
    "garbage-tail": False,
    "zero-tail": True,
    "zero-tail-subs": True,
    "duplicated-slice": True,
}


def test_every_damage_is_found_and_a_server_takes_it_as_described(tmp_path):
    healthy = digest(sample(tmp_path / "healthy", messages=40))
    assert SERVER_STARTS.keys() <= set(DAMAGES)
    for name in DAMAGES:
        result = write_sample(tmp_path / name, SampleOptions(messages=40, damage=[name]))
        (done,) = result.damages
        assert done.name == name
        assert done.detail, name
        assert digest(result.path) != healthy, name
        store = open_datastore(result.path)
        assert verify(store).findings, done
        if name in SERVER_STARTS:
            predicted = forecast(store, ServerOptions(), truncate=False)
            assert predicted.starts is SERVER_STARTS[name], (name, predicted.error)


def test_several_damages_go_to_the_channels_in_turn(tmp_path):
    result = write_sample(tmp_path / "store", SampleOptions(damage=["flipped-byte", "cut-payload", "lost-index"]))
    assert [Path(done.file).parts[0] for done in result.damages] == ["orders", "telemetry.device-1", "audit.log"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": ["a b", ".x"]}, "not a valid channel name"),
        ({"damage": ["nonsense"]}, "no damage called 'nonsense'"),
        ({"messages": -1}, "fewer than 0"),
        ({"messages": 0, "damage": ["flipped-byte"]}, "has no messages"),
        ({"channels": 0, "damage": ["lost-server"]}, "without channels"),
        ({"channels": 1, "damage": ["foreign-slice"]}, "no other beside it"),
        ({"no_subscriptions": True, "damage": ["cut-subs"]}, "no subscriptions"),
        ({"encryption_key": Secret(b"k"), "cipher": "ROT13"}, "cipher not supported"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, options, text):
    with pytest.raises(UsageError, match=text):
        write_sample(tmp_path / "store", SampleOptions(**options))
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    sample(tmp_path / "store")
    before = digest(tmp_path)
    with pytest.raises(StoreUnwritableError, match="not empty"):
        sample(tmp_path / "store", seed=2)
    assert digest(tmp_path) == before


def test_progress_counts_messages(tmp_path):
    told: list[int] = []
    write_sample(tmp_path / "store", SampleOptions(channels=2, messages=20_000, size=1), progress=told.append)
    assert sum(told) == 40_000
    assert len(told) == 4
