"""Stores of the real server are opened, served, continued and left in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from tests.brokers import Broker
from tests.conftest import GOLDEN, cases_by_kind, golden_cases, load_expected
from tests.interop.rawclient import Publisher, RawClient, stored

_KEYS = {"encrypted_aes": "AES", "encrypted_chacha": "CHACHA"}


def healthy() -> list[str]:
    """Stores that are whole; others have tests in tests/broker/stores."""
    return [
        case
        for case in golden_cases()
        if load_expected(case)["server_open"]["started"] and "damage" not in load_expected(case)
    ]


def settled(subscription: dict[str, Any]) -> dict[str, Any]:
    """A subscription without what changes as soon as a server runs and delivers."""
    changing = ("pending_count", "last_sent", "is_stalled")
    return {key: value for key, value in subscription.items() if key not in changing}


def by_inbox(channel: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(channel.get("subscriptions", []), key=lambda each: (each["ack_inbox"], each["inbox"]))


@pytest.mark.parametrize("case", cases_by_kind(healthy()))
def test_a_golden_store_is_served_and_continued(case: str, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    expected = load_expected(case)
    store = golden_copy(case)
    broker = Broker(
        tmp_path / "broker",
        "-st",
        "FILE",
        "-dir",
        store,
        "-cid",
        expected["server_info"]["ClusterID"],
        *expected["open_args"],
        http=True,
    )
    with broker:
        golden = expected["monitoring"]
        channels = broker.figures("streaming/channelsz?subs=1&limit=100000")
        assert [each["name"] for each in channels.get("channels", [])] == [
            each["name"] for each in golden["channelsz"].get("channels", [])
        ]
        for ours, theirs in zip(channels.get("channels", []), golden["channelsz"].get("channels", []), strict=True):
            assert list(ours) == list(theirs)
            for key in ("msgs", "bytes", "first_seq", "last_seq", "subs_count"):
                assert ours[key] == theirs[key], (ours["name"], key)
            for mine, its in zip(by_inbox(ours), by_inbox(theirs), strict=True):
                assert list(mine) == list(its)
                assert settled(mine) == settled(its)
                if its["is_offline"]:
                    assert mine == its
                else:
                    assert mine["last_sent"] >= its["last_sent"]
        clients = broker.figures("streaming/clientsz?limit=100000")
        assert [(each["id"], each["hb_inbox"]) for each in clients["clients"]] == [
            (each["id"], each["hb_inbox"]) for each in golden["clientsz"]["clients"]
        ]
        storez = broker.figures("streaming/storez")
        assert list(storez) == list(golden["storez"])
        for key in ("type", "limits", "total_msgs", "total_bytes"):
            assert storez[key] == golden["storez"][key]
        serverz = broker.figures("streaming/serverz")
        for key in ("cluster_id", "state", "clients", "subscriptions", "channels", "total_msgs", "total_bytes"):
            assert serverz[key] == golden["serverz"][key], key
        for number, (name, channel) in enumerate(expected["channels"].items()):
            got = stored(broker.port, f"reader-{number}", name.encode())
            assert digest_matches(got, channel), name
        with_room = list(expected["channels"])[:3]
        publisher = Publisher(broker.port, "continues", [name.encode() for name in with_room] or [b"new"])
        publisher.start()
        publisher.wait_for(100)
        publisher.stopping.set()
        publisher.join(90)
        assert not publisher.refused
        after = {each["name"]: each for each in broker.figures("streaming/channelsz?subs=1&limit=100000")["channels"]}
        for name in with_room:
            mine = sum(each == name.encode() for each, _ in publisher.sent)
            # One message more marked the end of reading.
            assert after[name]["last_seq"] == expected["channels"][name]["last_seq"] + mine + 1
        assert broker.stop() == 0
    assert_clean(store, expected)


def digest_matches(got: list[tuple[int, bytes]], channel: dict[str, Any]) -> bool:
    """Compares sequences and payloads with what the real server read."""
    told = {each["seq"]: each for each in channel["messages"]}
    readable = [number for first, last in channel["readable"] for number in range(first, last + 1)]
    assert [sequence for sequence, _ in got] == readable
    for sequence, data in got:
        if sequence in told:
            assert len(data) == told[sequence]["len"]
            assert hashlib.sha256(data).hexdigest() == told[sequence]["sha256"]
    return True


def assert_clean(store: Path, expected: dict[str, Any]) -> None:
    """The offline tools find nothing wrong, or no more than was there before."""

    def findings(place: Path) -> list[tuple[str, str]]:
        words = ["verify", str(place), "-o", "json", "--crc-poly", str(expected["options"]["file_crc_poly"])]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code in (0, 1), done.stderr
        return [
            (each["code"], each["channel"])
            for each in json.loads(done.stdout)["findings"]
            if each["severity"] != "info"
        ]

    before = findings(GOLDEN / expected["case"] / "datastore")
    assert [each for each in findings(store) if each not in before] == []


def test_the_other_cluster_id(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", "-st", "FILE", "-dir", golden_copy("basic"), "-cid", "other")
    broker.start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    assert 'Failed to start: cluster ID "other" does not match recovered value of "test-cluster"' in broker.said()


def test_a_client_of_before_goes_on(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """A client that the store knows may publish without connecting again (streaming-protocol.md section 23.2)."""
    expected = load_expected("durables")
    known = expected["clients"][0]["ID"]
    broker = Broker(tmp_path / "broker", "-st", "FILE", "-dir", golden_copy("durables"))
    with broker, RawClient(broker.port, "somebody") as client:
        client.client_id, client.connection_id = known.encode(), b""
        client.send(client.publication(b"events", b"guid", b"data"))
        subject, _, payload = client.message()
        while subject != client.acks:
            subject, _, payload = client.message()
        assert payload == b"\x0a\x04guid"


def test_a_slice_that_a_killed_server_had_begun(tmp_path: Path) -> None:
    """The original leaves such a file when it is killed between two calls, and does not start with it."""
    broker = Broker(tmp_path, "-st", "FILE", "-dir", tmp_path / "store", "--file_slice_max_msgs", 2)
    with broker:
        client = RawClient(broker.port, "me")
        for number in range(4):
            client.stored(b"foo", b"%d" % number)
        client.close()
        broker.kill()
    (tmp_path / "store" / "foo" / "msgs.3.dat").touch()
    start = len(broker.said())
    with broker:
        assert f'"{tmp_path}/store/foo/msgs.3.dat" is empty and has no index' in broker.said(start)
        client = RawClient(broker.port, "again")
        for number in range(4, 7):
            client.stored(b"foo", b"%d" % number)
        client.close()
        assert [data for _, data in stored(broker.port, "reader", b"foo")] == [b"%d" % number for number in range(7)]
