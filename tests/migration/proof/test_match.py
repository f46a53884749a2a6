"""Which channels a stream was made from."""

from __future__ import annotations

import os
from typing import Any

from stantools.migration.proof.match import channels_of, source_options_of

NAMES = ["orders", "orders.new", "a_b", "tail", os.fsdecode(b"caf\xff")]


def stream(name: str = "X", **config: Any) -> dict[str, Any]:
    return {"config": {"name": name, **config}}


def test_channels() -> None:
    rows: list[tuple[dict[str, Any], list[str]]] = [
        (stream(metadata={"stantools.channel": "orders"}, subjects=["tail"]), ["orders"]),
        (
            stream(metadata={"stantools.channel": "gone"}, description="NATS Streaming channel orders.new"),
            ["orders.new"],
        ),
        (stream(description="NATS Streaming channel caf\ufffd"), [NAMES[4]]),
        (stream(metadata={"stantools.channel": "tail.generation-2"}), ["tail.generation-2"]),
        (stream(metadata={"stantools.channel": "gone.generation-2"}, subjects=["tail"]), ["tail"]),
        (stream("orders_new", subjects=["whatever"]), ["orders.new"]),
        (stream(subjects=["orders", "tail"]), ["orders", "tail"]),
        (stream(subjects=["stan.orders.new"], metadata={"stantools.channels": "1"}), ["orders.new"]),
        (stream(subjects=["orders.>"]), []),
        (stream(subjects=None, metadata=None), []),
        (stream(), []),
    ]
    for info, expected in rows:
        assert channels_of(info, NAMES) == expected, (info, expected)


def test_patterns() -> None:
    names = ["a.b", "a.b.generation-12", "generation-1"]
    assert source_options_of(names, 1).patterns == ("a.b", "a.b", "generation-1")
