"""Streams that follow a store while its server goes on, with real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.migration.leaving import (
    CHANNEL,
    WAIT,
    Migration,
    Publisher,
    Subscriber,
    broker,
    connected,
    in_stream,
    outcome,
)
from tests.servers import NEWEST, NatsServer, available

pytestmark = pytest.mark.skipif(NEWEST not in available(), reason=f"nats-server {NEWEST} is not in .servers")


async def until(condition: Callable[[], Any]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + WAIT
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_publisher_and_subscriber_move_over(tmp_path: Path, start_server: Callable[..., NatsServer]) -> None:
    server = start_server()

    async def main() -> None:
        with broker(tmp_path / "broker") as streaming:
            migration = Migration(
                tmp_path, streaming.folder / "store", server.url, "--follow", "--cutover", "-o", "json"
            )
            publisher, subscriber = Publisher(streaming.url), Subscriber(streaming.url)
            over = False
            publishing = asyncio.create_task(publisher.to_streaming(lambda: over))
            subscribing = asyncio.create_task(subscriber.of_streaming(lambda: over))
            await until(lambda: len(publisher.acked) > 200)
            migration.start()
            async with await connected(server.url) as client:
                js = client.jetstream()

                async def follows() -> bool:
                    try:
                        state = (await js.stream_info(CHANNEL)).state
                    except Exception:
                        return False
                    return state.last_seq > 500

                await until(follows)
                # A message is there within a second.
                mark = len(publisher.acked)
                began = time.monotonic()

                async def has_mark() -> bool:
                    return (await js.stream_info(CHANNEL)).state.last_seq >= mark

                await until(has_mark)
                assert time.monotonic() - began < 1.5
                over = True
                await asyncio.gather(publishing, subscribing)
                streaming.stop()
                code, out, err = await migration.finish()
                assert code == 0, out + err
                result = outcome(out)
                await publisher.to_stream(js, 50)
                await subscriber.of_stream(js, publisher.number)
                held = await in_stream(js)
            print(result["cutover"], publisher.pause)
            assert [sequence for sequence, _ in held] == list(range(1, publisher.number + 1))
            assert [int(data) for _, data in held] == publisher.acked
            assert subscriber.got == publisher.acked
            assert result["cutover"]["carried"] > 0

    asyncio.run(main())
