"""Messages whose time is over at a start: what a forecast says is what real servers do in their first seconds."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.start_check import StartCheck, StreamsStartCheck
from stantools.inspection.stream_forecast.directory_forecast import StartedStream, forecast_directory
from stantools.inspection.stream_forecast.start_report import start_sentence
from stantools.inspection.stream_forecast.trusted_start import is_trusted
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.sources.door import open_source
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.lifetimes import FOREVER, ends_subject, lifetime_of, schedule_of, scheduled_headers
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.stream_checks import check_stream
from stantools.streamfiles.survey import StreamSurvey
from tests import servers
from tests.servers import NatsServer

SECOND = 10**9
HOUR = 3600 * SECOND
WITH_LIFETIMES = [each for each in servers.available() if each.startswith(("2.11", "2.12", "2.14", "2.15"))]


def started(store: Path, version: str, now: int) -> dict[str, StartedStream]:
    source = open_source(store)
    rules, survey = SERVER_RULES[".".join(version.split(".")[:2])], functools.cache(StreamSurvey)
    return {
        each.name: each
        for each in forecast_directory(source.streams, store, rules, now=now, survey=survey).streams.values()
    }


class TestGolden:
    """Every fourth of 40 messages had a lifetime of an hour; real servers were started two days later."""

    pytestmark = pytest.mark.golden
    OVER = Ranges.of([(each, each) for each in range(2, 39, 4)])

    @pytest.fixture
    def store(self, golden_jetstream: Path, tmp_path: Path) -> Path:
        shutil.copytree(golden_jetstream / "ok_ttl15/store", tmp_path / "store", copy_function=shutil.copyfile)
        return tmp_path / "store"

    @pytest.fixture
    def end(self, store: Path) -> int:
        """The time at which the lifetimes are over."""
        (orders,) = (each for each in open_source(store).streams if each.name == "ORDERS")
        return max(each.last_time for each in StreamSurvey(orders).blocks) + HOUR

    @pytest.mark.parametrize("wheel", ["whole", "missing", "broken"])
    def test_they_are_removed(self, store: Path, end: int, wheel: str) -> None:
        for path in store.rglob("thw.db") if wheel != "whole" else ():
            path.unlink() if wheel == "missing" else path.write_bytes(b"\x02" + path.read_bytes()[1:])
        for version in ("2.11", "2.15"):
            orders = started(store, version, end)["ORDERS"].as_json()
            assert [orders[each] for each in ("messages", "bytes", "first_seq", "last_seq", "num_deleted")] == [
                *(30, 3627, 1, 40, 10)
            ]
            assert (orders["destroyed"], orders["not_served"]) == ([], self.OVER.as_json())
        assert started(store, "2.15", end - HOUR // 2)["ORDERS"].state.messages == 40
        assert started(store, "2.10", end)["ORDERS"].state.messages == 40

    def test_a_guard_refuses_such_a_start(self, store: Path, end: int) -> None:
        rules, streams = [SERVER_RULES["2.15"]], open_source(store).streams
        assert all(is_trusted(each, rules, end - HOUR // 2) for each in streams)
        check = StartCheck()
        StreamsStartCheck(streams, store, rules, end).run(check, lambda _size: None)
        assert check.destroys == [] and "removes 10 intact messages" in check.expires[0]
        assert "$G/ORDERS 2, 6, 10" in check.expires[0]

    def configure(self, store: Path, **members: Any) -> None:
        folder = store / "jetstream/$G/streams/ORDERS"
        config = {**json.loads((folder / "meta.inf").read_text()), **members}
        data = json.dumps({name: value for name, value in config.items() if value is not None}).encode()
        (folder / "meta.inf").write_bytes(data)
        (folder / "meta.sum").write_bytes(meta_sum(data, highwayhash.stream_key("ORDERS")))

    def test_a_limit_of_age_takes_messages_that_never_expire(self, store: Path, end: int) -> None:
        """A running server spares them, its start does not; with markers no start does it, but a timer."""
        self.configure(store, max_age=HOUR, subject_delete_marker_ttl=None)
        (directory,) = (each for each in open_source(store).streams if each.name == "ORDERS")
        survey = StreamSurvey(directory)
        never = [
            int(batch.sequence[row])
            for _, batch in survey.messages()
            for row in range(len(batch))
            if lifetime_of(batch.header(row)) == FOREVER
        ]
        assert never
        found = started(store, "2.15", end)["ORDERS"]
        assert (found.state.messages, found.state.first, found.loss.destroyed.count()) == (0, 41, 40)
        assert (found.loss.destroyed - found.loss.expired).as_json() == [[each, each] for each in never]
        self.configure(store, subject_delete_marker_ttl=HOUR)
        found = started(store, "2.15", end)["ORDERS"]
        kept = Ranges.of((each, each) for each in never)
        assert (found.readable & Ranges.of([(1, 40)])) == kept and not found.loss.wrong
        assert found.state.last == 40 + found.state.messages - len(never) > 40
        assert started(store, "2.10", end)["ORDERS"].state.messages == 0

    def test_an_index_of_lifetimes_is_believed(self, store: Path, end: int) -> None:
        """One changed byte of thw.db moves a lifetime to the past, or names a message that has none."""
        path = store / "jetstream/$G/streams/ORDERS/msgs/thw.db"
        content = bytearray(path.read_bytes())
        assert content[26] == 34  # the sequence of the first entry
        content[26] = 33
        path.write_bytes(content)
        source = open_source(store)
        forecast = forecast_directory(source.streams, store, SERVER_RULES["2.15"], now=end, survey=StreamSurvey)
        loss = forecast.streams["$G/ORDERS"].loss
        assert loss.removed.as_json() == [[33, 33]] and 34 not in loss.unserved
        assert "removes messages of $G/ORDERS that thw.db wrongly counts as over: 33" in start_sentence(forecast)
        check = StartCheck()
        StreamsStartCheck(open_source(store).streams, store, [SERVER_RULES["2.15"]], end).run(check, lambda _: None)
        assert "thw.db wrongly" in check.destroys[0]

    def test_bytes_after_the_entries_of_an_index_are_ignored(self, store: Path, end: int) -> None:
        """With a smaller count, servers know fewer lifetimes (run on 2.11 and 2.15); an index that is cut they drop."""
        path = store / "jetstream/$G/streams/ORDERS/msgs/thw.db"
        content = path.read_bytes()
        path.write_bytes(content[:1] + b"\x01" + content[2:])
        found = started(store, "2.15", end)["ORDERS"]
        assert (found.state.messages, found.state.bytes, found.num_deleted) == (39, 4806, 1)
        (orders,) = (each for each in open_source(store).streams if each.name == "ORDERS")
        (flaw,) = check_stream(StreamSurvey(orders))
        assert (flaw.kind, flaw.file) == (FlawKind.TIMER_INDEX, "msgs/thw.db") and "1 entries end" in flaw.detail
        path.write_bytes(content[:-1])
        assert started(store, "2.15", end)["ORDERS"].state.messages == 30


def test_lifetimes_in_headers() -> None:
    rows: list[tuple[str, int]] = [
        *(("5", 5 * SECOND), ("1h30m", 5400 * SECOND), ("1.5s", SECOND), ("never", FOREVER)),
        *(("0", 0), ("-1", 0), ("100ms", 0), ("soon", 0), ("99999999999999", 0), ("", 0)),
    ]
    for value, lifetime in rows:
        assert lifetime_of(f"NATS/1.0\r\nNats-TTL: {value}\r\n\r\n".encode()) == lifetime, (value, lifetime)
        assert lifetime_of(f"NATS/1.0\r\nX-Nats-TTL: {value}\r\n\r\n".encode()) == 0, (value, lifetime)


def test_headers_after_which_no_marker_comes() -> None:
    """As nats-server 2.11.11, 2.12.8 and 2.15.1 read them (jetstream-server.md section 7)."""
    for header, ends in (
        *(("Nats-Marker-Reason: MaxAge", True), ("Nats-Marker-Reason: x", True), ("Nats-Marker-Reason: ", False)),
        *(("KV-Operation: PURGE", True), ("KV-Operation:  PURGE ", True), ("KV-Operation: DEL", False)),
        *(("KV-Operation: PURGED", False), ("KV-Operation: purge", False), ("kv-operation: PURGE", False)),
        *(("nats-marker-reason: x", False), ("Nats-Rollup: sub", False)),
    ):
        assert ends_subject(f"NATS/1.0\r\nA: b\r\n{header}\r\n\r\n".encode()) is ends, header


def test_schedules_in_headers() -> None:
    block = b"NATS/1.0\r\nNats-Schedule: @at 2026-11-27T22:05:38Z\r\nNats-Schedule-Target: SC.out.a\r\nX: 1\r\n"
    block += b"Nats-Schedule-TTL: 1h\r\nNats-Rollup: sub\r\n\r\n"
    assert schedule_of(block, 0) == (1795817138 * SECOND, True, b"SC.out.a")
    every = block.replace(b"@at 2026-11-27T22:05:38Z", b"@every 5s")
    assert schedule_of(every, SECOND) == (6 * SECOND, False, b"SC.out.a")
    assert schedule_of(every.replace(b"@every 5s", b"0 0 1 * * *"), 1) == (None, False, b"SC.out.a")
    assert schedule_of(block.replace(b"Nats-Schedule:", b"X:"), 0) is None
    # as a real server stored it
    assert scheduled_headers(block, b"SC.plan.a", b"purge") == (
        b"NATS/1.0\r\nX: 1\r\nNats-Scheduler: SC.plan.a\r\nNats-Schedule-Next: purge\r\nNats-TTL: 1h\r\n\r\n"
    )


LIFE = 6
FORMS: dict[str, dict[str, Any]] = {
    "PLAIN": {},
    "BLOCKS": {"max_bytes": 60_000},
    "QUEUE": {"retention": "workqueue"},
    "MARKED": {"subject_delete_marker_ttl": LIFE * SECOND, "allow_rollup_hdrs": True},
    "AGED": {"max_age": LIFE * SECOND, "duplicate_window": SECOND},
    "AGEDMARKED": {
        **{"max_age": LIFE * SECOND, "duplicate_window": SECOND, "allow_rollup_hdrs": True},
        "subject_delete_marker_ttl": 3600 * SECOND,
    },
}


async def fill(server: NatsServer, chance: random.Random) -> None:
    import nats

    client = await nats.connect(server.url)

    async def ask(subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        answer = json.loads((await client.request(subject, data, headers=headers, timeout=20)).data)
        assert "error" not in answer, (subject, headers, answer)

    for name, more in FORMS.items():
        config = {"name": name, "subjects": [f"{name}.>"], "allow_msg_ttl": True, "storage": "file", **more}
        await ask(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
        for _ in range(chance.randint(5, 30)):
            life = chance.choice(["", "", str(LIFE), f"{LIFE}s", "1h", "never"])
            size = chance.choice([10, 10, 7000]) if name == "BLOCKS" else 10
            headers = {"Nats-TTL": life} if life else {}
            if "MARKED" in name and chance.random() < 0.4:
                # No marker follows the purge of a key.
                headers["KV-Operation"] = chance.choice(["DEL", "PURGE"])
            await ask(f"{name}.s{chance.randint(1, 8)}", bytes(size), headers or None)
    if not server.version.startswith("2.11"):
        config = {"name": "PLANS", "subjects": ["PLANS.>"], "storage": "file", "allow_msg_schedules": True}
        config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
        await ask("$JS.API.STREAM.CREATE.PLANS", json.dumps(config).encode())
        for number in range(chance.randint(2, 6)):
            moment = time.gmtime(time.time() + chance.choice([LIFE - 2, 36_000]))
            headers = {"Nats-Schedule": time.strftime("@at %Y-%m-%dT%H:%M:%SZ", moment), "X": str(number)}
            headers["Nats-Schedule-Target"] = f"PLANS.out{number}"
            await ask(f"PLANS.plan{number}", b"x" * number, headers)
            await ask("PLANS.plain", b"")
    await client.close()


async def states(server: NatsServer, names: list[str]) -> dict[str, Any]:
    import nats

    client = await nats.connect(server.url)

    async def ask(operation: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await client.request(f"$JS.API.{operation}", json.dumps(body).encode(), timeout=20)
        return dict(json.loads(answer.data))

    found = {}
    for name in names:
        state = (await ask(f"STREAM.INFO.{name}", {}))["state"]
        readable = [
            sequence
            for sequence in range(1, state["last_seq"] + 1)
            if "message" in await ask(f"STREAM.MSG.GET.{name}", {"seq": sequence})
        ]
        values = [state[each] for each in ("messages", "bytes", "first_seq", "last_seq")]
        found[name] = (*values, state.get("num_deleted", 0), readable)
    await client.close()
    return found


def predicted(store: Path, version: str) -> dict[str, Any]:
    def numbers(ranges: Ranges) -> Iterator[int]:
        for first, last in ranges.as_json():
            yield from range(first, last + 1)

    return {
        name: (
            *(each.state.messages, each.state.bytes, each.state.first, each.state.last, each.num_deleted),
            list(numbers(each.readable)),
        )
        for name, each in started(store, version, time.time_ns()).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("index", ["kept", "lost", "without lifetimes"])
@pytest.mark.parametrize("version", WITH_LIFETIMES)
def test_what_is_predicted_is_what_a_server_does(version: str, index: str, tmp_path: Path) -> None:
    server = NatsServer(tmp_path, version)
    server.start()
    try:
        asyncio.run(fill(server, random.Random(f"{version} {index}")))
        server.stop() if index != "lost" else server.kill()
        time.sleep(LIFE + 1)  # lifetimes are counted by the clock
        for path in tmp_path.rglob("thw.db") if index == "without lifetimes" else ():
            path.unlink()
        wanted = predicted(server.store_dir, version)
        server.start()
        deadline = time.monotonic() + 15
        while (found := asyncio.run(states(server, list(wanted)))) != wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == wanted
    finally:
        server.kill()
