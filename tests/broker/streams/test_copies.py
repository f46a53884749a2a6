"""Messages that are published again, with other subjects, or copied to other streams: in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.stores.interface import StorageError
from broker.stores.streams.blocks import Block
from broker.streams.mapping import MappingError, SubjectMapping
from tests.broker.streams.world import World


def test_what_is_stored_is_published_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("R", subjects=["r.>"], republish={"src": "r.*", "dest": "again.$1"})
    world.create("H", subjects=["h.>"], republish={"src": "", "dest": "again.>", "headers_only": True})
    heard: list[tuple[bytes, list[bytes], bytes]] = []

    def publish(subject: str, payload: bytes, **headers: str) -> None:
        world.publish(subject, payload, **headers)
        for _, to, data, _, header in world.bus.said:
            if to.startswith(b"again."):
                lines = [line for line in header.split(b"\r\n") if b"Time-Stamp" not in line and line]
                heard.append((to, lines, data))

    publish("r.a", b"one", X="y")
    publish("r.a", b"two")
    publish("r.a.b", b"not this one")
    publish("r.a", b"refused", Nats_Expected_Stream="other")
    publish("h.a", b"three")
    assert heard == [
        (b"again.a", [b"NATS/1.0", b"X: y", *_origin("R", "r.a", 1), b"Nats-Last-Sequence: 0"], b"one"),
        (b"again.a", [b"NATS/1.0", *_origin("R", "r.a", 2), b"Nats-Last-Sequence: 1"], b"two"),
        (
            b"again.h.a",
            [b"NATS/1.0", *_origin("H", "h.a", 1), b"Nats-Last-Sequence: 0", b"Nats-Msg-Size: 5"],
            b"",
        ),
    ]
    with mock.patch.object(Block, "flush", side_effect=StorageError("no space")):
        publish("r.b", b"lost")
    assert len(heard) == 3
    world.restart()
    publish("r.a", b"five")
    assert heard[3][1][-1] == b"Nats-Last-Sequence: 2"


def _origin(stream: str, subject: str, sequence: int) -> list[bytes]:
    return [f"Nats-{name}: {value}".encode() for name, value in
            (("Stream", stream), ("Subject", subject), ("Sequence", sequence))]  # fmt: skip


def test_a_subject_that_would_be_none_stays() -> None:
    split = SubjectMapping("s.*", "z.{{split(1,-)}}")
    assert split.of(b"s.a-b") == b"z.a.b" and split.of(b"s.---") == b"s.---" and split.of(b"t.a") is None
    with pytest.raises(MappingError, match="unknown function"):
        SubjectMapping("s.*", "z.{{split}}")


def test_mapped_subjects_outlive_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    transform: dict[str, Any] = {"src": "s.*", "dest": "z.{{partition(3,1)}}.$1"}
    world.create("S", subjects=["s.>"], subject_transform=transform)
    world.publish("s.a")
    world.crash()
    world.publish("s.b")
    assert world.api("STREAM.INFO.S")["config"]["subject_transform"] == transform
    assert set(world.state("S")["subjects"]) == {"z.1.a", "z.1.b"}
