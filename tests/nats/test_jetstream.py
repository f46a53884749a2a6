"""The JetStream API of every server version, through our client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from stantools.migration.server.restore import state_differences
from stantools.nats.errors import ApiError, ConnectionLostError, NatsError, NoResponderError
from stantools.nats.jetstream import STREAM_NOT_FOUND, read_answer
from tests import servers
from tests.natsclient import jetstream


async def test_create_update_and_purge_a_stream(each_server: Any) -> None:
    async with jetstream(each_server.url) as js:
        assert (await js.account())["streams"] == 0
        assert await js.stream_names() == []
        assert await js.stream_info("A") is None
        assert not await js.delete_stream("A")
        created = await js.create_stream({"name": "A", "subjects": ["a.*"]})
        assert created["config"]["name"] == "A"
        for number in range(5):
            await js.connection.request(f"a.{number}", b"%d" % number)
        updated = await js.update_stream({"name": "A", "subjects": ["a.*", "b"], "description": "new"})
        assert updated["config"]["description"] == "new"
        assert await js.stream_names("b") == ["A"]
        assert await js.stream_names("c") == []
        message = await js.message("A", {"seq": 3})
        assert message is not None
        assert (message["subject"], base64.b64decode(message["data"])) == ("a.2", b"2")
        await js.delete_message("A", 3)
        assert await js.message("A", {"seq": 3}) is None
        assert await js.purge_stream("A", below=5) == 3
        assert await js.purge_stream("A") == 1
        assert await js.purge_stream("A", below=100) == 0
        info = await js.stream_info("A")
        assert info is not None
        assert info["state"]["last_seq"] == 99
        assert await js.delete_stream("A")


async def test_create_update_and_delete_consumers(each_server: Any) -> None:
    async with jetstream(each_server.url) as js:
        await js.create_stream({"name": "A", "subjects": ["a.*"]})
        durable = {"durable_name": "d", "ack_policy": "explicit", "filter_subject": "a.x"}
        assert (await js.consumer_create("A", durable))["name"] == "d"
        assert (await js.consumer_create("A", {"durable_name": "e", "ack_policy": "explicit"}))["name"] == "e"
        nameless = await js.consumer_create("A", {"ack_policy": "none", "inactive_threshold": 10**10})
        assert set(await servers.consumer_names(js, "A")) == {"d", "e", nameless["name"]}
        await js.consumer_create("A", {**durable, "max_ack_pending": 7})
        info = await js.consumer_info("A", "d")
        assert info is not None
        assert info["config"]["max_ack_pending"] == 7
        assert await js.consumer_info("A", "none") is None
        assert await js.consumer_info("NONE", "d") is None
        assert await js.consumer_delete("A", "d")
        assert not await js.consumer_delete("A", "d")
        with pytest.raises(ApiError):
            await js.consumer_create("NONE", durable)


async def test_stream_names_come_in_pages(start_server: Callable[..., Any]) -> None:
    async with jetstream(start_server().url) as js:
        names = [f"S{number:04}" for number in range(1100)]
        slots = asyncio.Semaphore(50)

        async def create(name: str) -> None:
            async with slots:
                await js.create_stream({"name": name, "storage": "memory"})

        await asyncio.gather(*map(create, names))
        # 1,024 are on a page.
        assert sorted(await js.stream_names()) == names
        assert await js.stream_names("S0007") == ["S0007"]


async def test_domains_and_api_prefixes(start_server: Callable[..., Any], tmp_path: Any) -> None:
    server = start_server(config={"jetstream": {"store_dir": str(tmp_path / "js"), "domain": "hub"}})

    for options, prefix in (
        ({}, "$JS.API"),
        ({"domain": "hub"}, "$JS.hub.API"),
        ({"api_prefix": "$JS.hub.API"}, "$JS.hub.API"),
    ):
        async with jetstream(server.url, **options) as js:
            assert js.prefix == prefix
            assert (await js.account())["domain"] == "hub"
    async with jetstream(server.url, domain="other") as js:
        with pytest.raises(NoResponderError, match=r"nothing listens on \$JS.other.API.INFO") as caught:
            await js.account()
    assert "JetStream domain" in caught.value.remedy


async def test_queries_are_repeated_after_a_broken_connection_changes_are_not(
    start_server: Callable[..., Any],
) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        sent: list[str] = []
        real = js.connection.request

        async def failing(subject: str, payload: bytes = b"", timeout: float | None = None) -> Any:
            sent.append(subject)
            if len(sent) == 1:
                raise ConnectionLostError("the connection broke", "")
            return await real(subject, payload, timeout)

        js.connection.request = failing  # type: ignore[method-assign]
        assert await js.stream_info("A") is None
        assert sent == ["$JS.API.STREAM.INFO.A"] * 2
        sent.clear()
        with pytest.raises(ConnectionLostError):
            await js.create_stream({"name": "A"})
        assert len(sent) == 1


def test_malformed_answers_are_refused() -> None:
    rows: list[bytes] = [b"", b"{", b"[]", b"null", b'{"error": 5}', b'{"error": {"code": "x"}}', b"\xff"]
    for answer in rows:
        with pytest.raises(NatsError, match=r"the answer to INFO is not an answer") as caught:
            read_answer("INFO", answer)
            pytest.fail(f"accepted: {answer!r}")
        assert not isinstance(caught.value, ApiError), answer


def test_errors_without_details() -> None:
    with pytest.raises(ApiError, match=r"no reason given \(error 500/0\)"):
        read_answer("INFO", b'{"error": {"code": 500}}')
    assert read_answer("INFO", b'{"type": "x"}') == {"type": "x"}
    assert STREAM_NOT_FOUND == 10059


def test_differences_of_stream_states() -> None:
    state = {"messages": 2, "bytes": 9, "first_seq": 1, "last_seq": 2, "first_ts": "2020-01-01T00:00:00.10Z"}
    assert state_differences(state, {**state, "first_ts": "2020-01-01T00:00:00.1Z", "deleted": [7]}) == []
    assert state_differences(state, {**state, "bytes": 8}) == ["bytes is 8 instead of 9"]
    assert state_differences(state, {**state, "first_ts": "never"}) == [
        "first_ts is never instead of 2020-01-01T00:00:00.10Z"
    ]
    # An empty stream's first sequence is not the same everywhere.
    empty = {"messages": 0, "first_seq": 10, "last_seq": 9}
    assert state_differences(empty, {**empty, "first_seq": 0}) == []
    assert state_differences(empty, {**empty, "last_seq": 8}) == ["last_seq is 8 instead of 9"]
    assert state_differences({"last_seq": 9}, {"messages": 5, "last_seq": 9}) == []
