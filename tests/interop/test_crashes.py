"""The broker is killed at random moments while several publishers are at work: nothing acknowledged is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.interop.rawclient import Publisher, stored

CHANNELS = [b"one", b"two", b"three.deep"]


def rounds(folder: Path, number: int, seed: int, *words: object) -> None:
    chance = random.Random(seed)
    broker = Broker(folder, "-st", "FILE", "-dir", folder / "store", "-mm", 0, "-mb", 0, "-mc", 0, *words)
    sent: dict[bytes, dict[str, list[bytes]]] = {channel: {} for channel in CHANNELS}
    acked: set[bytes] = set()
    with broker:
        for turn in range(number):
            publishers = [Publisher(broker.port, f"p{turn}-{name}", CHANNELS) for name in range(3)]
            for each in publishers:
                each.start()
            publishers[0].wait_for(1)
            time.sleep(chance.uniform(0, 0.25))
            broker.kill()
            for each in publishers:
                each.join(20)
                assert not each.is_alive()
                assert not each.refused
                acked.update(each.acked)
                for channel, data in each.sent:
                    sent[channel].setdefault(each.client_name, []).append(data)
            broker.start()
        padding = len(publishers[0].padding)
        there: set[bytes] = set()
        for channel in CHANNELS:
            got = [
                (sequence, data[:-padding])
                for sequence, data in stored(broker.port, f"reader-{channel[:3].decode()}", channel)
            ]
            assert [sequence for sequence, _ in got] == list(range(1, len(got) + 1))
            payloads = [data for _, data in got]
            assert len(set(payloads)) == len(payloads), "a message is there twice"
            there.update(payloads)
            for name, all_sent in sent[channel].items():
                mine = [data for data in payloads if data.startswith(f"{name}-".encode())]
                assert mine == all_sent[: len(mine)], "order, and no holes among what one publisher sent"
        assert acked <= there, f"{len(acked - there)} acknowledged messages are lost"
        assert broker.stop() == 0
    assert "panic" not in broker.said()


@pytest.mark.parametrize(
    "words", [(), ("--file_sync=false",), ("--file_buffer_size", 0), ("--file_slice_max_msgs", 50)], ids=str
)
def test_acknowledged_messages_survive(tmp_path: Path, words: tuple[object, ...]) -> None:
    rounds(tmp_path, 3, 1, *words)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_messages_survive_many_crashes(tmp_path: Path, seed: int) -> None:
    rounds(tmp_path, 50, seed)
