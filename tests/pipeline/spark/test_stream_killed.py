"""Broker and query are killed again and again while messages are published: every message arrives exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from stantools.streaming.client import ClientOptions, connect
from stantools.streaming.errors import StreamingError
from tests.brokers import Broker

pytest.importorskip("pyspark.sql.streaming.datasource")

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

CHANNELS = ["orders", "orders.eu", "jobs"]
#: Times that each is killed at least, and seconds in which that has to be possible.
BROKERS, QUERIES = 5, 2
SECONDS = 900.0


class Query:
    """The streaming query in a process group of its own."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        root = Path(__file__).parents[3]
        command = [sys.executable, str(Path(__file__).with_name("streamquery.py")), str(self.store), str(self.folder)]
        with (self.folder / "query.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(root)},
                start_new_session=True,
            )

    def batches(self) -> int:
        """Batches that are complete."""
        with contextlib.suppress(OSError):
            return sum(1 for each in (self.folder / "checkpoint" / "commits").iterdir() if each.name.isdecimal())
        return 0

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def publish(broker: Broker, first: int, acked: Counter[bytes], until: float) -> int:
    """Publishes until a time, or until the broker is gone. Returns the number of the next message."""
    number = first
    options = ClientOptions(max_outstanding=500)
    with contextlib.suppress(StreamingError, OSError, asyncio.TimeoutError):
        client = await connect(broker.url, "test-cluster", f"publisher{first}", options, reconnect_attempts=1)
        try:
            while time.monotonic() < until and not client.closed:
                for _ in range(50):
                    # Each number is used once: whether one arrived that was on its way to a killed broker is not known.
                    payload = b"%d" % number + b" " * (number % 700)
                    number += 1

                    def note(problem: StreamingError | None, payload: bytes = payload) -> None:
                        if problem is None:
                            acked[payload] += 1

                    await client.publish_async(CHANNELS[number % 3], payload, note)
                await asyncio.sleep(0.05)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), 2)
    return number


async def test_everything_is_killed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["-store", "FILE", "-dir", store, "-file_slice_max_msgs", "400", "-mm", "0"]
    broker = Broker(tmp_path / "broker", *words)
    query = Query(store, tmp_path)
    acked: Counter[bytes] = Counter()
    broker.start()
    number, brokers, killed, batches = 1, 0, 0, 0
    try:
        number = await publish(broker, number, acked, time.monotonic() + 1)
        query.start()
        end = time.monotonic() + SECONDS
        while brokers < BROKERS or killed < QUERIES:
            assert time.monotonic() < end, (tmp_path / "query.log").read_text()[-5000:]
            begin = number
            task = asyncio.create_task(publish(broker, begin, acked, time.monotonic() + 30))
            await asyncio.sleep(2)
            broker.kill()
            try:
                number = await asyncio.wait_for(task, 5)
            except TimeoutError:
                number = begin + 1_000_000
            broker.start()
            brokers += 1
            if killed < QUERIES and query.batches() > batches:
                query.kill()
                killed, batches = killed + 1, query.batches()
                query.start()
        number = await publish(broker, number, acked, time.monotonic() + 1)
        assert broker.stop() == 0
        query.kill()
        query.start("once")
        assert query.process is not None
        assert query.process.wait(900) == 0, (tmp_path / "query.log").read_text()[-5000:]
    finally:
        if query.process is not None:
            query.kill()
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["more"], summary["missing"]) == (0, 0)
    arrived = Counter(payload.encode() for payload in summary["payloads"])
    assert len(acked) > 500
    wrong = [payload.strip() for payload in acked if arrived[payload] != 1]
    assert wrong[:5] == [], "what was acknowledged is there exactly once"
    twice = [payload.strip() for payload, count in arrived.items() if count > 1]
    assert twice[:5] == []
