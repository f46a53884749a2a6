"""Streams that are filled by publishing hold exactly what the source holds, on every server."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stantools.errors import RefusedError, StantoolsError, UsageError
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.resume import NotOursError, missing
from stantools.migration.publish.stream_publish import publish_stream
from stantools.nats.errors import ApiError, PermissionDeniedError
from stantools.nats.jetstream import JetStream
from stantools.nats.publishing.publish_run import PublishWindow
from tests.conftest import others_slow
from tests.migration.publish.conftest import CONFIG, FakeSource, Item, expected, numbered, peer, read_back
from tests.natsclient import jetstream

GAPS = {
    "plain": FakeSource(numbered(*range(1, 50))),
    "leading": FakeSource(numbered(*range(100_000, 100_020))),
    "inner": FakeSource(numbered(*range(1, 5), 7, *range(9, 700), *range(2_000, 2_100)), batch_rows=64),
    "trailing": FakeSource(numbered(*range(1, 10)), last=25),
    "all": FakeSource(numbered(*range(33, 40), 50, 52), last=60),
    "first_only": FakeSource(numbered(7), last=9),
    "emptied": FakeSource([], last=41),
    "unused": FakeSource([]),
}


async def publish_one(js: JetStream, subject: str, data: bytes) -> int:
    """Publishes as others do; returns the sequence that it got."""
    async with peer(js) as client:
        return (await client.jetstream().publish(subject, data)).seq


async def test_every_gap_on_every_server(each_server: Any) -> None:
    async with jetstream(each_server.url) as js:
        for name, source in GAPS.items():
            told: list[int] = []
            config = {**CONFIG, "subjects": [name]}
            source = FakeSource(source.items, source.last, name.encode(), source.batch_rows)
            result = await publish_stream(js, name, config, source, progress=told.append)
            state = result.state
            assert state["messages"] == source.count == result.messages == sum(told), name
            assert state["last_seq"] == source.last, name
            assert result.fillers == missing(source) and result.found == 0 and result.interruptions == 0, name
            if source.count:
                assert state["first_seq"] == source.first and state.get("num_deleted", 0) == missing(source), name
                assert await read_back(js, name) == expected(source), name
            again = await publish_stream(js, name, config, source, resume=True)
            assert (again.messages, again.fillers, again.found) == (0, 0, source.count), name
            assert again.state["last_seq"] == source.last, name
            # Whoever publishes now goes on behind it.
            assert await publish_one(js, name, b"next") == source.last + 1, name


@pytest.mark.parametrize("origin", [True, False])
async def test_headers_and_payloads(start_server: Callable[..., Any], origin: bool) -> None:
    items = [
        Item(1),
        Item(2, -5, bytes(range(256)), b"reply.to.me"),
        Item(4, 2**63 - 1, b"\r\nPUB x 1\r\n"),
        Item(5, data=b"x" * 300_000),
        Item(6, 0, b"", b"only.reply"),
    ]
    source = FakeSource(items, channel="größer".encode())
    config = {**CONFIG, "subjects": ["größer"]}

    async with jetstream(start_server().url) as js:
        await publish_stream(js, "S", config, source, options=PublishOptions(origin=origin, generation=3))
        assert await read_back(js, "S") == expected(source, origin=origin)
        message = await js.message("S", {"seq": 4})
        assert message
        block = base64.b64decode(message["hdrs"])
        assert block.endswith("\r\nNats-Msg-Id: größer:3:4\r\nNats-Expected-Last-Sequence: 3\r\n\r\n".encode())


async def test_messages_up_to_what_the_server_takes(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        block = len(b"NATS/1.0\r\nNats-Msg-Id: orders:1:3\r\nNats-Expected-Last-Sequence: 2\r\n\r\n")
        most = (1 << 20) - block
        fits = FakeSource([*numbered(1, 2), Item(3, data=b"x" * most), *numbered(4)])
        await publish_stream(js, "S", {**CONFIG, "subjects": ["orders"]}, fits, options=PublishOptions(origin=False))
        assert await read_back(js, "S") == expected(fits, origin=False)
        await js.delete_stream("S")
        # Enough before it that some are stored when it is reached.
        larger = FakeSource([*numbered(*range(1, 9_000)), Item(9_000, data=b"x" * (most + 1)), *numbered(9_001)])
        with pytest.raises(
            StantoolsError, match=r"message 9000 of channel orders has 10485.. bytes with its head"
        ) as caught:
            await publish_stream(
                js, "S", {**CONFIG, "subjects": ["orders"]}, larger, options=PublishOptions(origin=False)
            )
        assert "is filled up to sequence" in caught.value.message
        assert "raise max_payload" in caught.value.remedy


async def test_a_window_of_bytes(start_server: Callable[..., Any]) -> None:
    source = FakeSource(numbered(*range(1, 100), size=50_000))

    async with jetstream(start_server().url) as js:
        await publish_stream(
            js, "S", CONFIG, source, options=PublishOptions(window=PublishWindow(bytes=120_000, chunk=7))
        )
        assert await read_back(js, "S") == expected(source)


def test_windows_that_are_none() -> None:
    rows: list[dict[str, int]] = [{"messages": 0}, {"messages": 5000}, {"bytes": 0}, {"bytes": 1 << 25}, {"chunk": 0}]
    for more in rows:
        with pytest.raises(ValueError, match="is not a window"):
            PublishWindow(**more)
            pytest.fail(f"accepted: {more!r}")


async def test_limits_apply_in_the_end_only(start_server: Callable[..., Any]) -> None:
    source = GAPS["inner"]

    async with jetstream(start_server().url) as js:
        config = {**CONFIG, "max_msgs": source.count, "max_msgs_per_subject": source.count, "discard": "new"}
        config |= {"max_age": 3600 * 10**9, "deny_delete": True, "deny_purge": True, "duplicate_window": 10**9}
        result = await publish_stream(js, "S", config, source)
        assert result.state["messages"] == source.count
        info = await js.stream_info("S")
        assert info and {key: info["config"][key] for key in config} == config
        # One that keeps less.
        config = {**CONFIG, "subjects": ["less"], "max_msgs": 10}
        less = FakeSource(source.items, channel=b"less")
        result = await publish_stream(js, "L", config, less)
        assert (result.state["messages"], result.state["last_seq"]) == (10, source.last)
        assert await read_back(js, "L") == expected(less)[-10:]
        again = await publish_stream(js, "L", config, less, resume=True)
        assert again.messages == 0 and again.state["messages"] == 10


async def test_one_that_is_there(start_server: Callable[..., Any]) -> None:
    async with jetstream(start_server().url) as js:
        source = GAPS["inner"]
        await js.create_stream({**CONFIG, "name": "S"})
        with pytest.raises(RefusedError, match="stream S already exists"):
            await publish_stream(js, "S", CONFIG, source)
        with pytest.raises(NotOursError, match=r"already exists with subjects \['orders'\], expected \['other'\]"):
            await publish_stream(js, "S", {**CONFIG, "subjects": ["other"]}, source, resume=True)
        await publish_stream(js, "S", CONFIG, source, resume=True)
        assert await read_back(js, "S") == expected(source)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (Item(1, data=b"foreign"), "there is a message of 7 bytes on orders at sequence 1"),
        (None, "no message at sequence 3"),
    ],
)
async def test_one_that_holds_something_else(start_server: Callable[..., Any], there: Item | None, words: str) -> None:
    source = FakeSource(numbered(*range(1, 10)))

    async with jetstream(start_server().url) as js:
        if there:
            await js.create_stream({**CONFIG, "name": "S"})
            await publish_one(js, "orders", there.data)
        else:
            await publish_stream(js, "S", CONFIG, FakeSource(source.items[:5]))
            await js.delete_message("S", 3)
        before = await js.stream_info("S")
        with pytest.raises(NotOursError, match=words) as caught:
            await publish_stream(js, "S", CONFIG, source, resume=True)
        assert "another application writes to the stream" in caught.value.remedy
        after = await js.stream_info("S")
        assert before and after and before["state"] == after["state"]


async def test_one_with_a_message_too_many(start_server: Callable[..., Any]) -> None:
    """Behind what is compared: a gap of the source that is none."""
    source = FakeSource(numbered(*(n for n in range(1, 6000) if n != 5)))

    async with jetstream(start_server().url) as js:
        await publish_stream(js, "S", CONFIG, FakeSource(numbered(*range(1, 5500))))
        with pytest.raises(NotOursError, match="at sequence 5, where the source has no message"):
            await publish_stream(js, "S", CONFIG, source, resume=True)


async def test_purged_meanwhile(start_server: Callable[..., Any]) -> None:
    source = FakeSource(numbered(*range(1, 10)))

    async with jetstream(start_server().url) as js:
        await publish_stream(js, "S", CONFIG, FakeSource(source.items[:5]))
        await js.purge_stream("S", below=3)
        with pytest.raises(NotOursError, match="begins at sequence 3, expected 1"):
            await publish_stream(js, "S", CONFIG, source, resume=True)
        await js.purge_stream("S")
        with pytest.raises(NotOursError, match="has been emptied: its last sequence is 5"):
            await publish_stream(js, "S", CONFIG, source, resume=True)


@pytest.mark.parametrize("version", others_slow(["2.9.10", "2.12.8", "2.15.1"], {"2.9.10", "2.15.1"}))
async def test_somebody_publishes_to_it_meanwhile(start_server: Callable[..., Any], version: str) -> None:
    source = FakeSource(numbered(*range(10, 20_000)))

    async with jetstream(start_server(version).url) as js:
        told: list[int] = []

        def disturb(count: int) -> None:
            told.append(count)
            if len(told) == 1:
                # Written behind our back, on the same connection: in between what is sent.
                js.connection.publish(b"orders", b"foreign")

        with pytest.raises(NotOursError, match="a message of 7 bytes on orders at sequence"):
            await publish_stream(js, "S", CONFIG, source, progress=disturb)
        assert len(told) < 100


async def test_a_new_stream_with_a_message_of_others_is_not_removed(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with jetstream(start_server().url) as js, peer(js) as client:
        create = js.create_stream

        async def created(config: Mapping[str, Any]) -> dict[str, Any]:
            info = await create(config)
            await client.jetstream().publish("orders", b"theirs")
            return info

        monkeypatch.setattr(js, "create_stream", created)
        with pytest.raises(NotOursError):
            await publish_stream(js, "S", CONFIG, GAPS["plain"])
        assert (await read_back(js, "S"))[0].data == b"theirs"


async def test_catching_up(start_server: Callable[..., Any]) -> None:
    """What has been added to the source since, also where the stream has its limits already."""
    items = numbered(*(n for n in range(5, 400) if n % 9))
    config = {**CONFIG, "max_msgs": 1000, "deny_purge": True}

    async with jetstream(start_server().url) as js:
        for until in (100, 101, 250, len(items)):
            source = FakeSource(items[:until])
            result = await publish_stream(js, "S", config, source, resume=True)
            assert result.messages + result.found == until
            assert await read_back(js, "S") == expected(source)
            info = await js.stream_info("S")
            assert info and info["config"]["max_msgs"] == 1000 and info["config"]["deny_purge"]
        # Once it has its configuration nothing can be deleted from it.
        whole = {**config, "deny_delete": True}
        await publish_stream(js, "S", whole, source, resume=True)
        more = FakeSource([*items, *numbered(400, 401)])
        await publish_stream(js, "S", whole, more, resume=True)
        assert await read_back(js, "S") == expected(more)
        gap = FakeSource([*more.items, *numbered(403)])
        with pytest.raises(
            RefusedError, match=r"forbids deleting messages \(deny_delete\), which is needed for 1 gaps after"
        ):
            await publish_stream(js, "S", whole, gap, resume=True)


async def test_too_many_fillers(start_server: Callable[..., Any]) -> None:
    source = FakeSource(numbered(1, 2_000_000))

    async with jetstream(start_server().url) as js:
        with pytest.raises(RefusedError, match="1999998 sequences have no message") as caught:
            await publish_stream(js, "S", CONFIG, source)
        assert "restore an archive" in caught.value.remedy
        assert await js.stream_info("S") is None
        publishing = PublishOptions(filler_limit=8_998)
        result = await publish_stream(js, "S", CONFIG, FakeSource(numbered(1, 9_000)), options=publishing)
        assert (result.state["messages"], result.state["num_deleted"]) == (2, 8_998)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mirror": {"name": "X"}}, "its messages come from elsewhere"),
        ({"sources": [{"name": "X"}]}, "its messages come from elsewhere"),
        ({"retention": "interest"}, "with the retention interest messages would be removed"),
    ],
)
async def test_impossible_configurations_are_refused(
    start_server: Callable[..., Any], more: dict[str, Any], words: str
) -> None:
    async with jetstream(start_server().url) as js:
        with pytest.raises(UsageError, match=words):
            await publish_stream(js, "S", {**CONFIG, **more}, GAPS["plain"])
        assert await js.stream_info("S") is None


async def test_subjects_that_cannot_be(start_server: Callable[..., Any]) -> None:
    async with jetstream(start_server().url) as js:
        for channel in (b"two words", b"a..b", b"a.*", b">", b"", b"a\r\nb", b"x\x7f", b"\xff"):
            with pytest.raises(StantoolsError, match="publishing to the subject"):
                await publish_stream(js, "S", CONFIG, FakeSource(numbered(1, 2), channel=channel))
                pytest.fail(f"accepted: {channel!r}")
            # It was created for nothing, and is gone.
            assert await js.stream_info("S") is None, channel


def permitted(publish: list[str], deny: list[str] | None = None) -> dict[str, Any]:
    permissions = {"publish": {"allow": publish, "deny": deny or []}, "subscribe": ["_INBOX.>"]}
    return {"authorization": {"users": [{"user": "u", "password": "p", "permissions": permissions}]}}


NEEDED = (
    "STREAM.CREATE.S",
    "STREAM.MSG.DELETE.S",
    "STREAM.UPDATE.S",
    "CONSUMER.INFO.S.probe",
    "STREAM.PURGE.S",
    "orders",
)


@pytest.mark.parametrize(
    ("version", "missing_one"),
    [
        *(("2.15.1", each) for each in NEEDED),
        ("2.9.10", "STREAM.PURGE.S"),
        *(pytest.param("2.9.10", each, marks=pytest.mark.slow) for each in NEEDED if each != "STREAM.PURGE.S"),
    ],
)
async def test_not_permitted(start_server: Callable[..., Any], version: str, missing_one: str) -> None:
    subject = missing_one if missing_one == "orders" else f"$JS.API.{missing_one}"
    server = start_server(version, config=permitted([">"], [subject]))
    source = GAPS["all"]

    async with jetstream(server.url, user="u", password="p") as js:
        config = {**CONFIG, "max_msgs": 1000}
        if missing_one == "STREAM.PURGE.S" and version != "2.9.10":
            # There is another way.
            await publish_stream(js, "S", config, source)
            assert await read_back(js, "S") == expected(source)
            return
        from tests.migration.publish.test_consumers import durable, place

        with pytest.raises(PermissionDeniedError) as caught:
            await publish_stream(js, "S", config, source, [(durable("x"), place(0))])
        assert f"the user u may not publish to {subject}" in caught.value.message
        assert await js.stream_info("S") is None


@pytest.mark.parametrize("version", others_slow(["2.9.10", "2.15.1"], {"2.15.1"}))
async def test_no_room(start_server: Callable[..., Any], version: str) -> None:
    limits = {"max_mem": 1 << 20, "max_file": 300_000}
    config = {"accounts": {"A": {"jetstream": limits, "users": [{"user": "a", "password": "a"}]}}}
    server = start_server(version, config=config)
    source = FakeSource(numbered(*range(1, 3000), size=100))

    async with jetstream(server.url, user="a", password="a") as js:
        with pytest.raises(ApiError) as caught:
            await publish_stream(js, "S", CONFIG, source)
        assert "resource limits exceeded" in caught.value.message or "insufficient" in caught.value.message
        assert "is filled up to sequence" in caught.value.message
        assert "the same command continues from there" in caught.value.remedy


async def test_an_account_that_demands_limits(start_server: Callable[..., Any]) -> None:
    limits = {"max_file": 10_000_000, "max_bytes_required": True}
    config = {"accounts": {"A": {"jetstream": limits, "users": [{"user": "a", "password": "a"}]}}}
    source = FakeSource(numbered(*range(1, 1000), size=100))
    more = FakeSource([*source.items, *numbered(1000, 1002)])

    async with jetstream(start_server(config=config).url, user="a", password="a") as js:
        with pytest.raises(RefusedError, match="demands that streams have max_bytes"):
            await publish_stream(js, "S", CONFIG, source)
        with pytest.raises(ApiError, match="maximum bytes exceeded"):
            await publish_stream(js, "S", {**CONFIG, "max_bytes": 50_000}, source)
        await js.delete_stream("S")
        for wanted in (source, more):
            await publish_stream(js, "S", {**CONFIG, "max_bytes": 2_000_000}, wanted, resume=True)
            assert await read_back(js, "S") == expected(wanted)
        info = await js.stream_info("S")
        assert info and (info["config"]["max_bytes"], info["config"]["discard"]) == (2_000_000, "old")


async def test_without_jetstream(start_server: Callable[..., Any]) -> None:
    server = start_server(jetstream=False)

    async with jetstream(server.url, timeout=0.5) as js:
        with pytest.raises(StantoolsError):
            await publish_stream(js, "S", CONFIG, GAPS["plain"])
