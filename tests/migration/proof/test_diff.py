"""`stantools diff`, with two stores and with streams on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import store_pb2 as pb
from tests.cli.conftest import Run
from tests.migration.stores import T0, fill, records, stored, write_store
from tests.natsclient import with_jetstream


@pytest.fixture(autouse=True)
def no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NATS_URL", raising=False)


@pytest.fixture
def stream(start_server: Callable[..., Any], tmp_path: Path) -> tuple[str, Path]:
    """A server with a stream ORDERS_new, and a store with its channel orders.new."""
    server = start_server()
    messages = [("orders.new", b"%d" % n, {}) for n in range(1, 101)]
    asyncio.run(fill(server.url, "orders_new", messages, subjects=["orders.new"]))
    rows = asyncio.run(stored(server.url, "orders_new"))
    return server.url, write_store(tmp_path / "store", {"orders.new": rows, "other": records(3)})


def test_two_equal_stores(run: Run, tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", {"foo": records(5), "bar": records(2)})
    b = write_store(tmp_path / "b", {"foo": records(5), "bar": records(2)}, cluster="other")
    result = run("diff", a, b)
    assert result.code == 0
    assert "server-differs  server.dat" in result.out
    assert "no difference: 7 messages in 2 channels are in both stores" in result.out
    result = run("diff", a, b, "-o", "json", "--channel", "foo")
    assert result.json() == {
        "schema": 1,
        "stream": None,
        "channels": 1,
        "messages": 5,
        "damaged": [False, False],
        "findings": [],
    }


def test_two_different_stores(run: Run, tmp_path: Path) -> None:
    rows = records(5)
    a = write_store(tmp_path / "a", {"foo": rows})
    b = write_store(tmp_path / "b", {"foo": [*rows[:2], (3, T0, b"", b"x"), rows[4]]})
    result = run("diff", a, b)
    assert result.code == 1
    for code in ("message-missing", "message-timestamp", "message-payload"):
        assert re.search(rf"^error +{code} +foo$", result.out, re.MULTILINE), result.out
    assert "different: 3 findings; 4 messages in 1 channel are in both stores" in result.out
    result = run("diff", a, b, "-o", "ndjson")
    assert result.code == 1
    assert [(each["code"], each["channel"], each["seq"]) for each in result.ndjson()] == [
        ("message-missing", "foo", 4),
        ("message-timestamp", "foo", 3),
        ("message-payload", "foo", 3),
    ]
    assert run("diff", a, b, "-o", "csv").out.startswith(
        "code,severity,file,channel,seq,detail,remedy\nmessage-missing,"
    )


def test_a_damaged_store(run: Run, golden: Path) -> None:
    result = run("diff", golden / "damage_base" / "datastore", golden / "dmg_payload_flip_idx_intact" / "datastore")
    assert result.code == 1
    assert "is damaged; only its intact data was compared" in result.err


def test_bad_stores(run: Run, tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", {"foo": records(5)})
    assert run("diff", a, tmp_path / "nothing").code == 3
    result = run("diff", a, a, "--channel", "bar.*")
    assert (result.code, "no channel of either store matches bar.*" in result.err) == (2, True)


def test_an_equal_stream(run: Run, stream: tuple[str, Path]) -> None:
    url, store = stream
    result = run("diff", store, f"{url}#orders_new")
    assert result.code == 0, result.out + result.err
    assert "no difference: 100 messages" in result.out
    assert "of channel orders.new were compared with stream orders_new" in result.out
    result = run("diff", store, "#orders_new", "--server", url, "-o", "json")
    assert result.code == 0
    facts = result.json()
    assert (facts["stream"], facts["channels"], facts["messages"]) == ("orders_new", ["orders.new"], 100)
    assert run("diff", store, "#orders_new", env={"NATS_URL": url}).code == 0


def test_the_server_of_a_context(run: Run, stream: tuple[str, Path], tmp_path: Path) -> None:
    url, store = stream
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "here.json").write_text(json.dumps({"url": url}))
    assert run("diff", store, "#orders_new", "--context", "here").code == 0
    (folder.parent / "context.txt").write_text("here")
    assert run("diff", store, "#orders_new").code == 0


def test_a_different_stream(run: Run, stream: tuple[str, Path]) -> None:
    url, store = stream
    with_jetstream(url, lambda js: js.delete_message("orders_new", 50))
    result = run("diff", store, f"{url}#orders_new")
    assert result.code == 1
    assert "message-missing  orders.new\n" in result.out
    assert "1 message of stream orders_new: 50" in result.out
    result = run("diff", store, f"{url}#orders_new", "--channel", "other", "-o", "ndjson")
    assert result.code == 1
    assert {each["code"] for each in result.ndjson()} >= {"message-extra", "message-timestamp"}


def test_durables(run: Run, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server()
    asyncio.run(fill(server.url, "foo", [("foo", b"x", {})] * 20, subjects=["foo"]))
    rows = asyncio.run(stored(server.url, "foo"))
    state = pb.SubState(
        id=1, client_id=b"c", durable_name=b"d", is_durable=True, is_closed=True, last_sent=7, ack_wait_in_secs=30
    )
    store = write_store(tmp_path / "s", {"foo": rows}, subscriptions={"foo": [(state, [])]})
    result = run("diff", store, f"{server.url}#foo", "-o", "ndjson")
    assert [each["code"] for each in result.ndjson()] == ["consumer-missing"]
    config = {"durable_name": "d", "deliver_policy": "all", "ack_policy": "explicit"}
    with_jetstream(server.url, lambda js: js.consumer_create("foo", config))
    result = run("diff", store, f"{server.url}#foo", "-o", "ndjson")
    assert {each["code"]: "up to 0 instead of 7" in each["detail"] for each in result.ndjson()} == {
        "consumer-position": True,
        "consumer-config": False,
    }


def test_several_channels_in_one_stream(run: Run, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Numbered anew, in the order of time, with their origin in headers."""
    from stantools.streamfiles.headers import header_block

    server = start_server()
    a = [(n, T0 + 10 * n, b"", b"a%d" % n) for n in range(5, 25)]
    b = [(n, T0 + 10 * n + 5, b"in", b"b%d" % n) for n in range(1, 31)]
    messages = []
    for time, name, n, reply, data in sorted(
        [(r[1], "m.a", r[0], r[2], r[3]) for r in a] + [(r[1], "m.b", *r[:1], r[2], r[3]) for r in b]
    ):
        block = header_block(name.encode(), n, time, reply, origin=True).decode()
        headers = dict(line.split(": ", 1) for line in block.split("\r\n")[1:-2])
        messages.append((name, data, {**headers, "Nats-Msg-Id": f"{name}:1:{n}"}))
    asyncio.run(fill(server.url, "M", messages, subjects=["m.a", "m.b"]))
    store = write_store(tmp_path / "s", {"m.a": a, "m.b": b, "m.c": []})
    result = run("diff", store, f"{server.url}#M")
    assert result.code == 0, result.out
    assert "50 messages" in result.out
    assert run("diff", store, f"{server.url}#M", "--channel", "m.a").code == 1


def test_what_cannot_be_compared(run: Run, stream: tuple[str, Path], tmp_path: Path) -> None:
    url, store = stream
    result = run("diff", store, url)
    assert (result.code, "names a server without a stream" in result.err) == (2, True)
    result = run("diff", store, f"{url}#orders_mew")
    assert (result.code, "has no stream orders_mew" in result.err, "orders_new" in result.err) == (2, True, True)
    result = run("diff", store, f"{url}#orders_new", "--channel", "nothing")
    assert (result.code, "no channel matches nothing" in result.err) == (2, True)
    result = run("diff", write_store(tmp_path / "x", {"x": []}), f"{url}#orders_new")
    assert (result.code, "name it with --channel" in result.err) == (2, True)
    result = run("diff", store, "#orders_new", "--server", "embedded")
    assert (result.code, "name a running server" in result.err) == (2, True)
    result = run("diff", store, "nats://127.0.0.1:1#orders_new")
    assert (result.code, "cannot connect" in result.err) == (3, True)
    assert os.environ.get("NATS_URL") is None
