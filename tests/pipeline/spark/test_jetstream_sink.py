"""What tasks and the driver of the sink do, without Spark, against a real server."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import prepare
from stantools.migration.source import open_source
from stantools.migration.targets.server_destination import prove
from stantools.pipeline.spark import jetstream_task
from stantools.pipeline.spark.jetstream_task import TaskReport, commit, write_rows
from stantools.store.directory import open_datastore
from tests.brokers import Broker
from tests.natsclient import with_jetstream
from tests.pipeline.spark.sinking import batches, description, expected, info, options, rows, stored

ORDERS = rows("orders", (number for number in range(5, 900) if number % 11))
OTHERS = [rows(f"c.{number}", range(1, 4 + number)) for number in range(12)]


def write(server: Any, *parts: list[dict[str, Any]], **more: str) -> list[TaskReport]:
    """Runs a job whose tasks get these rows, with results as they come to the driver."""
    given = pickle.loads(pickle.dumps(options(server.url, **more)))
    return [pickle.loads(pickle.dumps(write_rows(given, batches(part)))) for part in parts]


@pytest.fixture(params=["nats-server", "broker"])
def server(request: pytest.FixtureRequest, start_server: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """A real server, and a broker of ours."""
    if request.param == "nats-server":
        yield start_server()
    else:
        with Broker(tmp_path, "-js", "-sd", tmp_path / "streams") as broker:
            yield broker


def test_a_job(server: Any) -> None:
    parts = [[*chain(*OTHERS[::2])], [*chain(ORDERS, *OTHERS[1::2])], []]
    results = write(server, *parts, maxAge="9000h", streamPrefix="old-")
    assert sum(each.part.messages for result in results for each in result.channels) == sum(map(len, parts))
    # Until the driver has seen all results, every stream looks incomplete.
    assert description(server, "old-orders").startswith("stantools: not complete")
    commit(options(server.url, maxAge="9000h", streamPrefix="old-"), results)
    assert stored(server, "old-orders") == expected(ORDERS)
    for number, listed in enumerate(OTHERS):
        assert stored(server, f"old-c_{number}") == expected(listed)
    found = info(server, "old-orders")
    assert found and found["config"]["description"] == "NATS Streaming channel orders"
    assert found["config"]["metadata"]["stantools.channel"] == "orders"
    assert found["config"]["max_age"] == 9000 * 3600 * 10**9
    # Committed again, and the whole job again: nothing changes.
    commit(options(server.url, maxAge="9000h", streamPrefix="old-"), results)
    before = found["state"]
    again = write(server, *parts, maxAge="9000h", streamPrefix="old-")
    assert all(each.part.mark is None for result in again for each in result.channels)
    commit(options(server.url, maxAge="9000h", streamPrefix="old-"), again)
    found = info(server, "old-orders")
    assert found and found["state"] == before
    # What has come since goes behind it.
    later = rows("orders", range(901, 950))
    results = write(server, ORDERS[-7:] + later, maxAge="9000h", streamPrefix="old-")
    commit(options(server.url, maxAge="9000h", streamPrefix="old-"), results)
    assert stored(server, "old-orders") == expected(ORDERS + later)


def test_a_store(start_server: Callable[..., Any], golden: Path) -> None:
    """Proven as `stantools migrate verify` proves it."""
    server = start_server(config={"max_payload": 8 << 20})
    store = golden / "basic" / "datastore"
    source = open_source(open_datastore(store))
    listed = {channel.name: channel for channel in source.channels if channel.count}
    for name, channel in listed.items():
        rest = [
            {
                "channel": name,
                "seq": int(batch.sequence[row]),
                "timestamp_ns": int(batch.timestamp[row]),
                "reply": batch.reply(row).decode() or None,
                "data": batch.data(row),
                "status": "ok",
            }
            for batch in channel.read()
            for row in range(len(batch))
        ]
        commit(options(server.url), write(server, rest))
    plan = make_plan(source, PlanOptions(origin_headers="on"), (2, 15, 1))  # type: ignore[arg-type]
    for stream in prepare(plan, source):
        if stream.source.count and stream.source.last == stream.source.parts[0][0].sequences.last:
            proof = with_jetstream(server.url, lambda js, stream=stream: prove(js, stream, published=True))
            assert [each for each in proof.findings if each.code != "consumer-missing"] == []
            assert proof.messages == stream.source.count


def test_what_would_only_come_again_is_told_to_the_driver(start_server: Callable[..., Any]) -> None:
    server = start_server()
    good, bad, worse = write(server, OTHERS[3], ORDERS[5:7] + ORDERS[:3], rows("x", [1, 1]))
    assert bad.problem and "message 5 comes after message 12" in bad.problem[0]
    with pytest.raises(RefusedError, match=r"message 5 comes after message 12 \(and 1 more tasks failed\)"):
        commit(options(server.url), [good, bad, worse])
    assert info(server, "orders") is None
    assert description(server, "c_3").startswith("stantools: not complete")
    # The same job with its rows in order goes on.
    results = write(server, OTHERS[3], ORDERS)
    commit(options(server.url), results)
    assert stored(server, "c_3") == expected(OTHERS[3])


def test_a_channel_in_several_tasks(start_server: Callable[..., Any]) -> None:
    server = start_server()
    for first, second in ((ORDERS[:100], ORDERS[100:]), (ORDERS[100:], ORDERS[:100]), (ORDERS[::2], ORDERS[1::2])):
        results = write(server, first, second)
        with pytest.raises(RefusedError) as raised:
            commit(options(server.url), results)
        assert "jetstream.write" in raised.value.remedy or "remove the stream" in raised.value.remedy
        assert description(server, "orders").startswith("stantools: not complete")
        with_jetstream(server.url, lambda js: js.delete_stream("orders"))
    with pytest.raises(RefusedError, match="channel orders: its rows are in several partitions"):
        commit(options(server.url), write(server, ORDERS, ORDERS))


def test_two_attempts_of_a_task_at_once(start_server: Callable[..., Any]) -> None:
    server = start_server()
    rest = [*chain(ORDERS, *OTHERS)]
    results: list[TaskReport] = []
    threads = [threading.Thread(target=lambda: results.extend(write(server, rest))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and not any(result.problem for result in results)
    commit(options(server.url), results[1:2])
    assert stored(server, "orders") == expected(ORDERS)
    for number, listed in enumerate(OTHERS):
        assert stored(server, f"c_{number}") == expected(listed)


def test_a_task_that_is_killed(start_server: Callable[..., Any]) -> None:
    server = start_server()
    script = "import sys; from tests.pipeline.spark.test_jetstream_sink import long_rows, options, write_rows; "
    script += "write_rows(options(sys.argv[1]), long_rows())"
    for reached in (1, 1_500):
        process = subprocess.Popen([sys.executable, "-c", script, server.url])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            found = info(server, "long")
            if found and found["state"]["last_seq"] >= reached:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert description(server, "long").startswith("stantools: not complete")
    everything = [row for batch in long_rows() for row in batch.to_pylist()]
    there = info(server, "long")
    assert there is not None
    last = there["state"]["last_seq"]
    result = write_rows(options(server.url), long_rows())
    [channel] = result.channels
    # All of them if the machine is so busy that the kill comes late.
    assert 0 < sum(row["seq"] <= last for row in everything) <= channel.part.found <= channel.part.messages
    commit(options(server.url), [result])
    assert stored(server, "long") == expected(everything)


def long_rows() -> Iterator[pa.RecordBatch]:
    """Rows that take a while."""
    for at in range(8):
        yield from batches(
            [row | {"data": b"%d" % row["seq"] * 100} for row in rows("long", range(1 + 500 * at, 500 * at + 496))]
        )


def test_limits_of_the_server(start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(
        config={"jetstream": {"store_dir": str(tmp_path / "js"), "max_mem": 1 << 20, "max_file": 1 << 20}}
    )
    large = [row | {"data": b"x" * 10_000} for row in rows("large", range(1, 301))]
    [result] = write(server, large)
    assert result.problem
    with pytest.raises(StantoolsError, match="stream large is filled up to sequence") as raised:
        commit(options(server.url), [result])
    assert "resource" in raised.value.message or "storage" in raised.value.message
    assert "the same command continues from there" in raised.value.remedy
    assert description(server, "large").startswith("stantools: not complete")
    server.stop()
    bigger = start_server(
        config={"jetstream": {"store_dir": str(tmp_path / "js"), "max_mem": 1 << 20, "max_file": 1 << 30}}
    )
    results = write(bigger, large)
    assert results[0].channels[0].part.found
    commit(options(bigger.url), results)
    assert stored(bigger, "large") == expected(large)
    # A message that no server of this kind takes.
    [result] = write(bigger, [row | {"data": bytes(2 << 20)} for row in rows("huge", [1])])
    assert result.problem and "message 1 of channel huge has" in result.problem[0]


def test_nobody_is_there(start_server: Callable[..., Any]) -> None:
    with pytest.raises(StantoolsError, match="cannot connect to") as raised:
        write_rows(options("nats://127.0.0.1:1"), batches(ORDERS))
    assert raised.value.remedy
    with pytest.raises(StantoolsError, match=r"nothing listens on \$JS.API.INFO"):
        jetstream_task.check_server(options(start_server(jetstream=False).url))
    # Without rows nobody is asked.
    assert write_rows(options("nats://127.0.0.1:1"), []) == TaskReport()
    commit(options("nats://127.0.0.1:1"), [TaskReport()])


def test_a_server_that_is_killed_meanwhile(start_server: Callable[..., Any]) -> None:
    server = start_server()

    def killing() -> Iterator[pa.RecordBatch]:
        yield from long_rows()

    def restart() -> None:
        while not (found := info(server, "long")) or found["state"]["last_seq"] < 1000:
            time.sleep(0.001)
        server.kill()
        time.sleep(0.3)
        server.start()

    thread = threading.Thread(target=restart)
    thread.start()
    result = write_rows(options(server.url), killing())
    thread.join()
    commit(options(server.url), [result])
    assert stored(server, "long") == expected([row for batch in long_rows() for row in batch.to_pylist()])


def test_options_are_taken_along(start_server: Callable[..., Any]) -> None:
    users = {"authorization": {"users": [{"user": "sink", "password": "s3cret"}]}}
    server = start_server(config=users)
    more = {
        "user": "sink",
        "passwordEnv": "SINK_PASSWORD",
        "originHeaders": "off",
        "stream": "ALL",
        "subjectPrefix": "old",
    }
    given = options(server.url, **more)
    problem = write_rows(given, batches(ORDERS)).problem
    assert problem and "SINK_PASSWORD, which option passwordEnv names, is not set where a task runs" in problem[0]
    os.environ["SINK_PASSWORD"] = "s3cret"
    try:
        commit(given, [write_rows(given, batches(ORDERS[:40]))])
    finally:
        del os.environ["SINK_PASSWORD"]
    login = {"user": "sink", "password": "s3cret"}
    config = with_jetstream(server.url, lambda js: js.stream_info("ALL"), **login)["config"]
    assert config["subjects"] == ["old.orders"]
