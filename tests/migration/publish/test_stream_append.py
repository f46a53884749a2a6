"""Parts written behind what a stream holds: exactly once, however often and by however many."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stantools.errors import RefusedError
from stantools.migration.publish import loader
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.resume import NotOursError
from stantools.migration.publish.stream_append import AppendMark, AppendResult, append_part, check_part, finish_part
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.errors import ApiError
from stantools.nats.jetstream import JetStream
from stantools.nats.publishing.publish_run import PublishRun, PublishWindow
from tests.migration.publish.conftest import CONFIG, FakeSource, expected, numbered, read_back
from tests.migration.publish.test_interrupted import Killed, Killer
from tests.natsclient import jetstream
from tests.waiting import until

SMALL = PublishWindow(messages=16, chunk=4)
LIMITED = {**CONFIG, "description": "done", "max_msgs": 400, "max_age": 0, "max_bytes": -1}
#: One channel: begins late, has gaps, also where the second part begins.
ALL = numbered(*(n for n in range(10, 160) if n not in (13, 14, 60, 61) and not 95 < n < 103))
FIRST = FakeSource([item for item in ALL if item.sequence < 100], batch_rows=25)
SECOND = FakeSource([item for item in ALL if item.sequence > 100], batch_rows=25)
BOTH = FakeSource(ALL, batch_rows=25)


async def append(js: JetStream, source: FakeSource, config: dict[str, Any] | None = None, **more: Any) -> AppendResult:
    return await append_part(js, "orders", config or LIMITED, source, options=PublishOptions(window=SMALL), **more)


async def write(js: JetStream, source: FakeSource, config: dict[str, Any] | None = None) -> AppendResult:
    part = await append(js, source, config)
    await check_part(js, part)
    await finish_part(js, config or LIMITED, part)
    return part


async def config_of(js: JetStream) -> dict[str, Any]:
    info = await js.stream_info("orders")
    assert info
    return dict(info["config"])


async def is_exact(js: JetStream, source: FakeSource) -> None:
    """The stream holds the source and nothing else, and looks complete."""
    info = await js.stream_info("orders")
    assert info
    state, config = info["state"], info["config"]
    assert await read_back(js, "orders") == expected(source)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (source.count, source.first, source.last)
    assert (config["description"], config["max_msgs"]) == ("done", 400)


def test_the_mark_of_a_stream() -> None:
    for mark in (AppendMark(1, 7), AppendMark(3, 10**18, 2, 2), AppendMark(50, 60, 55, 4)):
        assert AppendMark.of({"description": str(mark)}) == mark
    assert AppendMark(5, 9).floor == 4 and AppendMark(50, 60, 40).floor == 40 and AppendMark(50, 60, 55).floor == 49
    assert AppendMark.of({}) is AppendMark.of({"description": "orders"}) is None


async def test_part_by_part(each_server: Any) -> None:
    async with jetstream(each_server.url) as js:
        part = await append(js, FIRST)
        assert (part.messages, part.found, part.total, part.fillers) == (FIRST.count, 0, FIRST.count, 4)
        config = await config_of(js)
        assert config["description"] == "stantools: not complete, sequences 10 to 95 are being written"
        assert config["max_msgs"] == -1
        await finish_part(js, LIMITED, part)
        await is_exact(js, FIRST)
        # Again: nothing happens, and it never looks incomplete.
        assert (await write(js, FIRST)).mark is None
        part = await append(js, SECOND)
        assert (await config_of(js))["description"].endswith(
            f"103 to 159 are being written behind 95 ({FIRST.count} messages)"
        )
        assert (part.total, part.fillers) == (BOTH.count, 7)
        await check_part(js, part)
        await finish_part(js, LIMITED, part)
        await is_exact(js, BOTH)
        # All of it, or a part that overlaps, already exists.
        for source in (BOTH, SECOND, FIRST, FakeSource(ALL[50:])):
            assert (await write(js, source)).mark is None
        longer = FakeSource([*ALL[70:], *numbered(161, 162)])
        assert (await write(js, longer)).found == len(ALL) - 70
        await is_exact(js, FakeSource([*ALL, *numbered(161, 162)]))


async def test_killed_anywhere(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server()
    killer = Killer(monkeypatch)
    ends = 0

    async def delete() -> None:
        files = server.store_dir / "jetstream" / "$G" / "streams" / "orders"
        assert files.exists()
        async with jetstream(server.url) as js:
            await js.delete_stream("orders")
        # A busy server may still be removing its files, and then makes none of that name (500/10049), or has written
        # one more after it.
        try:
            until(lambda: not files.exists(), seconds=10)
        except AssertionError:
            shutil.rmtree(files, ignore_errors=True)

    for before in (True, False):
        for point in (*range(1, 60, 4), 75):
            killer.before, killer.left = before, 0
            async with jetstream(server.url) as js:
                await write(js, FIRST)
            killer.left = point
            try:
                async with jetstream(server.url) as js:
                    await write(js, SECOND)
            except Killed:
                ends += 1
            killer.left = 0
            async with jetstream(server.url) as js:
                part = await write(js, SECOND)
            assert part.messages == SECOND.count
            async with jetstream(server.url) as js:
                await is_exact(js, BOTH)
            await delete()
            # The same for the stream's first messages.
            killer.left = point
            try:
                async with jetstream(server.url) as js:
                    await write(js, BOTH)
            except Killed:
                ends += 1
            killer.left = 0
            async with jetstream(server.url) as js:
                await write(js, BOTH)
            async with jetstream(server.url) as js:
                await is_exact(js, BOTH)
            await delete()
    assert ends > 40


async def test_two_at_once(each_server: Any) -> None:
    async with jetstream(each_server.url) as js, connect(ConnectOptions(servers=(each_server.url,))) as other:
        both = js, JetStream(other)
        for first, second in ((FIRST, FIRST), (BOTH, BOTH), (LONG, LONG)):
            parts = await asyncio.gather(append(both[0], first), append(both[1], second))
            assert parts[0].mark == parts[1].mark or None in (parts[0].mark, parts[1].mark)
            for part in parts:
                await check_part(js, part)
            await finish_part(js, LIMITED, parts[0])
            await finish_part(js, LIMITED, parts[1])
        assert await read_back(js, "orders") == expected(LONG)[-400:]


async def test_two_writers_create_the_stream_at_once(each_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.9 may see the subjects of the stream that the other has just created before it sees that it has this name."""
    create = JetStream.create_stream

    async def beaten(self: JetStream, config: Any) -> dict[str, Any]:
        await create(self, config)
        raise ApiError("STREAM.CREATE.orders", 400, 10065, "subjects overlap with an existing stream")

    async with jetstream(each_server.url) as js:
        monkeypatch.setattr(JetStream, "create_stream", beaten)
        await write(js, FIRST)
        await is_exact(js, FIRST)


async def test_two_writers_fill_the_first_gap(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.10 a writer learns from a refusal how the server counts; another one's filler must not mislead it."""
    server = start_server("2.9.10")
    send_one, others = loader.Loader.send_one, [FIRST.last + 1]

    async with jetstream(server.url) as js:
        async with connect(ConnectOptions(servers=(server.url,))) as other:

            async def late(self: Any, batch: Any) -> None:
                if others and self.confirmed + 1 == others[0]:
                    run = PublishRun("orders", PublishWindow())
                    run.begin(b"nobody.", self.confirmed)
                    for shift in (0, FIRST.first - 1):
                        await other.write(run.encode_fillers(self.subject, 1, shift))
                    await other.flush()
                    info = await js.stream_info("orders")
                    assert info and info["state"]["last_seq"] == others.pop()
                await send_one(self, batch)

            monkeypatch.setattr(loader.Loader, "send_one", late)
            await write(js, FIRST)
            await write(js, BOTH)
        assert not others
        await is_exact(js, BOTH)


async def test_a_server_that_counts_too_few(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """2.10.26 can fall back to the sequence of a purge that ends while messages come in."""
    real, purge = loader.Loader.run, JetStream.purge_stream
    purged: list[Any] = []

    async def refused(self: Any, after: int) -> None:
        if after == FIRST.last and (after, FIRST.first) not in purged:
            async with self._begun(after):
                raise ApiError("message", 400, 10071, f"wrong last sequence: {FIRST.first - 1}")
        await real(self, after)

    async def noted(self: JetStream, name: str, **which: Any) -> int:
        removed = await purge(self, name, **which)
        info = await self.stream_info(name)
        assert info
        purged.append((info["state"]["last_seq"], which["below"]))
        return removed

    monkeypatch.setattr(loader.Loader, "run", refused)
    monkeypatch.setattr(JetStream, "purge_stream", noted)

    async with jetstream(start_server("2.10.26").url) as js:
        await write(js, FIRST)
        await write(js, BOTH)
        assert purged[-1] == (FIRST.last, FIRST.first)
        await is_exact(js, BOTH)


LONG = FakeSource([*ALL, *numbered(*(n for n in range(200, 600) if n % 5))])


async def test_a_late_task_changes_nothing(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that Spark has given up, and that wakes up when all is done."""
    server = start_server()

    async with jetstream(server.url) as js:
        waiting, go_on = asyncio.Event(), asyncio.Event()
        write_frames = NatsConnection.write
        sent = 0

        async def slow(connection: NatsConnection, frames: bytes) -> None:
            nonlocal sent
            sent += 1
            if connection is other and sent > 5:
                waiting.set()
                await go_on.wait()
            await write_frames(connection, frames)

        monkeypatch.setattr(NatsConnection, "write", slow)
        async with connect(ConnectOptions(servers=(server.url,))) as other:
            late = asyncio.ensure_future(append(JetStream(other), BOTH))
            await waiting.wait()
            await write(js, BOTH)
            go_on.set()
            await late
        await is_exact(js, BOTH)


async def test_what_was_begun_is_finished_first(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        await append(js, FakeSource(ALL[:20]))
        for source, message in (
            (SECOND, "sequences 10 to 31 are still being written, and these are sequences 103 to 159"),
            (FakeSource(ALL[:10]), "these are sequences 10 to 21"),
            (FakeSource(ALL[5:]), "these are sequences 17 to 159"),
        ):
            with pytest.raises(RefusedError, match=message) as raised:
                await append(js, source)
            assert "write sequences 10 to 31 again first" in raised.value.remedy
        # One that has more goes on; then the first one has nothing to say any more.
        part = await append(js, FIRST)
        with pytest.raises(RefusedError, match="sequences 10 to 95 are being written, and not 10 to 31"):
            await check_part(js, replace(part, mark=AppendMark(10, 31)))
        await finish_part(js, LIMITED, part)
        await append(js, SECOND)
        with pytest.raises(RefusedError, match="these are sequences 201 to 599"):
            await append(js, FakeSource(LONG.items[len(ALL) :]))
        # All from the beginning on contains it.
        await write(js, BOTH)
        await is_exact(js, BOTH)


async def test_what_is_not_the_same_is_refused(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        await write(js, FIRST)
        other = [*ALL[:80], replace(ALL[80], data=b"other"), *ALL[81:]]
        for source in (FakeSource(other[:85]), FakeSource(other), FakeSource(ALL[:40] + ALL[41:])):
            with pytest.raises(NotOursError, match="where the source has"):
                await append(js, source)
            await js.update_stream({**await config_of(js), "description": "done", "max_msgs": 400})
        with pytest.raises(RefusedError, match="with other settings: max_msgs is 400, asked for 7"):
            await append(js, BOTH, {**LIMITED, "max_msgs": 7})
        with pytest.raises(NotOursError, match="with storage file, expected memory"):
            await append(js, BOTH, {**LIMITED, "storage": "memory"})
        await is_exact(js, FIRST)
        # Somebody else publishes: not a message of theirs is taken for ours, and none of ours goes behind it.
        js.connection.publish(b"orders", b"hello")
        await js.connection.flush()
        while (info := await js.stream_info("orders")) and info["state"]["last_seq"] == FIRST.last:
            await asyncio.sleep(0.01)  # servers store after they have answered the flush
        with pytest.raises(NotOursError):
            await append(js, BOTH)
        with pytest.raises(RefusedError, match="4999903 sequences have no message"):
            await append(js, FakeSource(numbered(5 * 10**6)))


async def test_limits_have_removed_the_beginning(each_server: Any) -> None:
    async with jetstream(each_server.url) as js:
        config = {**LIMITED, "max_msgs": 30}
        await write(js, FIRST, config)
        assert (await js.stream_info("orders"))["state"]["messages"] == 30  # type: ignore[index]
        assert (await write(js, FIRST, config)).mark is None
        part = await write(js, BOTH, config)
        assert part.found == FIRST.count
        assert await read_back(js, "orders") == expected(BOTH)[-30:]
        await js.purge_stream("orders")
        assert (await write(js, BOTH, config)).mark is None
        await write(js, FakeSource([*ALL, *numbered(161, 163)]), config)
        assert [each.sequence for each in await read_back(js, "orders")] == [161, 163]


async def test_an_empty_stream_that_somebody_made(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        await js.create_stream({**LIMITED, "name": "orders"})
        await write(js, BOTH)
        await is_exact(js, BOTH)
        with pytest.raises(RefusedError, match="was removed"):
            part = await append(js, LONG)
            await js.delete_stream("orders")
            await check_part(js, part)
        await write(js, BOTH)
        part = await append(js, LONG)
        await js.delete_message("orders", 150)
        with pytest.raises(NotOursError, match="a client deletes"):
            await check_part(js, part)
