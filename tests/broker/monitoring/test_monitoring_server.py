from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from broker.monitoring.monitoring_server import MonitoringError, MonitoringServer
from broker.nats.nats_options import TLSOptions
from tests.broker.monitoring.standins import Got, Nats, Streaming, get, monitoring
from tests.conftest import golden_cases
from tests.nats.authority import Authority


async def ask(
    target: str,
    streaming: Streaming | None = None,
    nats: Nats | None = None,
    method: str = "GET",
    body: bytes = b"",
) -> Got:
    async with monitoring(streaming, nats) as server:
        return await get(server.port, target, method, body=body)


def types(value: Any) -> Any:
    """The shape of a document: names in their order, and types."""
    if isinstance(value, dict):
        return [(name, types(each)) for name, each in value.items()]
    if isinstance(value, list):
        return [types(each) for each in value]
    return type(value)


@pytest.mark.parametrize("endpoint", ["serverz", "storez"])
async def test_documents_are_written_as_they_are(endpoint: str) -> None:
    got = await ask(f"/streaming/{endpoint}")
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    assert got.headers["access-control-allow-origin"] == "*"
    assert got.headers["content-length"] == str(len(got.body))
    expected = Streaming().documents[endpoint]
    assert got.body.decode() == json.dumps(expected, indent=2)


@pytest.mark.golden
@pytest.mark.parametrize("case", [case for case in golden_cases() if case in ("durables", "clients_many", "v038")])
async def test_documents_of_the_original_keep_their_shape(case: str) -> None:
    streaming = Streaming.golden(case)

    async with monitoring(streaming) as server:
        for endpoint, expected in streaming.documents.items():
            got = await get(server.port, f"/streaming/{endpoint}?subs=1&limit=100000")
            assert types(got.json) == types(expected)
            assert got.json == expected


@pytest.mark.parametrize(
    ("target", "members"),
    [
        ("clientsz", {"offset": 0, "limit": 1024, "count": 2, "total": 2}),
        ("clientsz?offset=1&limit=1", {"offset": 1, "limit": 1, "count": 1, "total": 2}),
        ("clientsz?offset=-1&limit=x", {"offset": 0, "limit": 1024, "count": 2}),
        ("clientsz?offset=9", {"count": 0, "total": 2, "clients": []}),
        ("channelsz", {"names": ['<b>&"\\', "orders.eu"]}),
        ("channelsz?subs=true", {"names": ['<b>&"\\', "orders.eu"]}),
        ("channelsz?offset=1", {"names": ["orders.eu"], "total": 2}),
    ],
)
async def test_lists(target: str, members: dict[str, Any]) -> None:
    got = (await ask(f"/streaming/{target}")).json
    assert {name: got[name] for name in members} == members


async def test_subscriptions_only_when_asked_for() -> None:
    assert "subscriptions" in (await ask("/streaming/clientsz?subs=1")).json["clients"][0]
    assert "subscriptions" not in (await ask("/streaming/clientsz")).json["clients"][0]
    assert "subscriptions" in (await ask("/streaming/channelsz?channel=orders.eu&subs=1")).json
    assert "subscriptions" not in (await ask("/streaming/channelsz?channel=orders.eu&subs=2")).json


async def test_one_client_one_channel() -> None:
    assert (await ask("/streaming/clientsz?client=app-2&offset=7")).json["hb_inbox"] == "_INBOX.765h5dMq5hSFgtbNgy14xs"
    got = await ask("/streaming/channelsz?channel=%3Cb%3E%26%22%5C")
    assert got.json["bytes"] == 63
    assert rb'"name": "\u003cb\u003e\u0026\"\\"' in got.body


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("clientsz?client=nobody", "Client nobody not found\n"),
        ("channelsz?channel=ORDERS.eu", "Channel ORDERS.eu not found\n"),
        ("channelsz?channel=orders.*", "Channel orders.* not found\n"),
        ("channelsz?channel=%ff", "Channel \ufffd not found\n"),
        ("serverz/", "404 page not found\n"),
    ],
)
async def test_what_is_not_there(target: str, text: str) -> None:
    got = await ask(f"/streaming/{target}")
    assert got.status == 404
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.body.decode() == text


async def test_callback() -> None:
    got = await ask("/streaming/serverz?callback=show")
    assert got.headers["content-type"] == "application/javascript"
    assert got.body.startswith(b"show({\n")
    assert got.body.endswith(b"\n})")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
async def test_any_method_is_treated_like_get(method: str) -> None:
    got = await ask("/streaming/serverz", method=method, body=b"x" * 1000)
    assert (got.status, got.json["channels"]) == (200, 2)


async def test_head_has_no_body() -> None:
    got = await ask("/streaming/serverz", method="HEAD")
    assert (got.status, got.body) == (200, b"")


@pytest.mark.parametrize(("state", "status"), [("FT_ACTIVE", 200), ("FT_STANDBY", 204), ("STANDALONE", 204)])
async def test_is_ft_active(state: str, status: int) -> None:
    streaming = Streaming()
    streaming.documents["serverz"]["state"] = state
    got = await ask("/streaming/isFTActive", streaming)
    assert (got.status, got.body) == (status, b"")


async def test_a_view_that_fails_is_an_error_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    got = await ask("/streaming/serverz", Streaming(fails=True))
    assert got.status == 500
    assert got.body == b"Error getting information about serverz: the server is on fire\n"
    assert "the server is on fire" in caplog.text


async def test_pages_with_links() -> None:
    for target in ("/", "/streaming"):
        got = await ask(target)
        assert got.headers["content-type"] == "text/html; charset=utf-8"
        assert b"<a href=" in got.body


async def test_endpoints_of_nats() -> None:
    nats = Nats()
    async with monitoring(nats=nats) as server:
        varz = (await get(server.port, "/varz")).json
        assert list(varz) == list(nats.varz(None))
        assert (varz["http_host"], varz["http_port"], varz["https_port"]) == ("127.0.0.1", server.port, 0)
        assert (await get(server.port, "/connz?subs=1&state=any")).json["num_connections"] == 0
        assert nats.asked == [{"subs": "1", "state": "any"}]
        wrong = await get(server.port, "/connz?sort=foo")
        assert (wrong.status, wrong.body) == (400, b"invalid sorting option: foo")
        assert (await get(server.port, "/subscriptionsz")).json["cache_hit_rate"] == 0.8
        health = await get(server.port, "/healthz")
        assert (health.status, health.body) == (200, b'{"status":"ok"}')
        nats.status = "unavailable"
        assert (await get(server.port, "/healthz")).status == 503
        assert (
            await get(server.port, "/healthz?callback=f")
        ).body == b'f({"status":"unavailable","error":"unavailable"})'
        varz = (await get(server.port, "/varz")).json
        assert varz["http_req_stats"] == {"/connz": 2, "/healthz": 3, "/subsz": 1, "/varz": 2}
        for path in ("/routez", "/gatewayz", "/leafz", "/accountz", "/accstatz", "/jsz"):
            assert (await get(server.port, path)).json["server_id"] == "NB6E"
        assert (await get(server.port, "/ipqueuesz")).body == b"{}"
        assert (await get(server.port, "/accountz?acc=$G")).json["account_detail"]["client_connections"] == 4
        assert (await get(server.port, "/accountz?acc=x")).status == 400
        assert b"task" in (await get(server.port, "/stacksz")).body


async def test_base_path_is_for_nats_only() -> None:
    async with monitoring(base_path="/nats/") as server:
        for target, status in (
            ("/nats/varz", 200),
            ("/nats", 200),
            ("/varz", 404),
            ("/", 200),
            ("/streaming/serverz", 200),
            ("/nats/streaming/serverz", 404),
            ("/metrics", 200),
        ):
            assert (await get(server.port, target)).status == status, target
        assert b'href="nats/varz"' in (await get(server.port, "/nats")).body


async def test_parts_can_be_left_out() -> None:
    server = MonitoringServer(None, object(), streaming_views=Streaming())
    await server.start("127.0.0.1", -1)
    for target, status in (("/varz", 404), ("/", 200), ("/streaming/serverz", 200), ("/metrics", 200)):
        assert (await get(server.port, target)).status == status
    assert b'href="streaming/ui"' in (await get(server.port, "/")).body
    await server.stop()
    await server.stop()


async def test_whole_urls_and_escaped_paths() -> None:
    async with monitoring() as server:
        assert (await get(server.port, "http://elsewhere/streaming/serverz?callback=f")).body.startswith(b"f(")
        assert (await get(server.port, "/streaming/%73erverz")).status == 200
        assert (await get(server.port, "http://[/x")).status in (400, 404)


async def test_start_is_logged_and_a_taken_port_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        server = MonitoringServer(object(), None, nats_views=Nats())
        with pytest.raises(MonitoringError) as problem:
            await server.start("127.0.0.1", port)
        assert str(problem.value) == (
            "Can't start monitoring: can't listen to the monitor port: "
            f"listen tcp 127.0.0.1:{port}: bind: address already in use"
        )
        async with monitoring() as other:
            assert f"Starting http monitor on 127.0.0.1:{other.port}" in caplog.text


async def test_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", "127.0.0.1")

    trust = ssl.create_default_context(cafile=str(authority.path))
    # Certificates of clients are not asked for, whatever the NATS port does.
    async with monitoring(tls=TLSOptions(cert, key, ca=authority.path, verify=True)) as server:
        assert (await get(server.port, "/varz", ssl=trust)).json["https_port"] == server.port


async def test_a_bad_certificate_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", "127.0.0.1", passphrase=b"secret")

    for tls in (TLSOptions(cert, key), TLSOptions(cert, tmp_path / "missing"), TLSOptions(key, key)):
        with pytest.raises(MonitoringError, match="X509 certificate/key pair"):
            await MonitoringServer(object(), None, nats_views=Nats()).start("127.0.0.1", 0, tls)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"],
)
async def test_garbage_does_no_harm(garbage: bytes) -> None:
    async with monitoring() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert (await get(server.port, "/streaming/serverz")).status == 200


async def test_a_long_document_lets_others_go_first() -> None:
    entries = [
        {"id": f"client-{number}", "hb_inbox": "_INBOX.x", "subs_count": 0, "subscriptions": {}}
        for number in range(20000)
    ]
    streaming = Streaming()
    streaming.documents["clientsz"]["clients"] = entries

    async with monitoring(streaming) as server:
        turns = 0
        asked = asyncio.ensure_future(get(server.port, "/streaming/clientsz?limit=20000"))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(asked.result().json["clients"]) == 20000
        assert turns > 20


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /varz HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /%s" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_one_line_of_the_log(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with monitoring() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_)
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
        assert b" 400 " in answer.partition(b"\r\n")[0]
    [record] = caplog.records
    assert record.exc_info is None
    said = record.getMessage()
    assert said.startswith("Monitoring: Error handling request from 127.0.0.1: 400")
    assert "\n" not in said and len(said) < 400
