"""The same requests to real servers and to ours: each of our answers is that of one of them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.broker.streams import consuming, conversations, copying, later
from tests.broker.streams.playing import play
from tests.brokers import Broker

#: What we keep to is 2.10; where it was mended later, we do as later ones.
VERSIONS = [version for version in servers.available() if version != servers.OLDEST]
#: What servers know from 2.11 on.
LATER = ("BATCHES", "PAUSES", "TTLS", "PRIORITIES", "PEDANTIC", "LEVELS")
PARTS = {
    **{name: getattr(conversations, name) for name in ("STREAMS", "MESSAGES", "LIMITS")},
    **{name: getattr(consuming, name) for name in ("CONFIGS", "PULLS", "RETENTION")},
    **{name: getattr(copying, name) for name in ("MAPPINGS", "REPUBLISHES", "ORIGINS", "CYCLES")},
    **{name: getattr(later, name) for name in LATER},
}


@pytest.mark.skipif(not VERSIONS, reason="no real server is here")
@pytest.mark.parametrize("part", PARTS)
async def test_answers_are_those_of_real_servers(tmp_path: Path, part: str) -> None:
    steps: list[Any] = PARTS[part]
    # Servers that do not know a request are silent, for which one has to wait.
    known = VERSIONS if part not in LATER else [each for each in VERSIONS if not each.startswith("2.10.")]

    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store"))
        theirs = [
            stack.enter_context(servers.NatsServer(tmp_path / version, version))
            for version in sorted({known[0], known[-1]})
        ]
        ours, *real = await asyncio.gather(*(play(each.url, steps) for each in (broker, *theirs)))
        assert "rror" not in broker.said()
    different = [
        f"{step}\n  ours: {own}\n  theirs: {others}"
        for step, own, *others in zip(steps, ours, *real, strict=True)
        if own not in others
    ]
    assert not different, "\n".join(different)
