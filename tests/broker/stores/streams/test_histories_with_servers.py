"""A real server finds in a directory what our model has, believes its index, and leaves what ours opens again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import NotFoundError

from tests import natsclient, servers
from tests.broker.stores.streams.histories import NAME, History, logged, small_blocks

pytestmark = pytest.mark.skipif(servers.NEWEST not in servers.available(), reason="no nats-server here")


async def look(url: str) -> tuple[dict[int, tuple[int, bytes, bytes]], int]:
    """Returns the messages of the stream, and its last sequence."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        state = (await js.stream_info(NAME)).state
        sequences = range(state.first_seq, state.last_seq + 1)
        got: list[Any] = await asyncio.gather(*(js.get_msg(NAME, each) for each in sequences), return_exceptions=True)
    messages = [each for each in got if not isinstance(each, NotFoundError)]
    assert state.messages == len(messages)
    return {each.seq: (0, each.subject.encode(), each.data or b"") for each in messages}, state.last_seq


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(each, marks=pytest.mark.slow) for each in range(3, 30))])
async def test_a_real_server_has_what_the_model_has(tmp_path: Path, seed: int) -> None:
    history = History(seed, tmp_path)
    with small_blocks(history):
        for _ in range(60):
            history.step()
        history.store.close()
        history.place.close()
        server = servers.NatsServer(tmp_path / "n", servers.NEWEST, {"jetstream": {"store_dir": str(history.root)}})
        with server:
            messages, last = await look(server.url)
        expected = {number: (0, each[1], each[3]) for number, each in history.model.messages.items()}
        assert (messages, last) == (expected, history.model.last)
        assert "Stream state" not in server.text()
        with logged() as lines:
            history.open()
        assert not lines
        assert history.found() == history.model.messages
        assert history.store.contents.last == history.model.last
        history.place.close()
