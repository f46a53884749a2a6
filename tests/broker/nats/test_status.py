"""Documents for monitoring: the members of nats-server's, in its order; the same complaints."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from broker.monitoring.http import written
from broker.nats import status
from broker.nats.nats_options import Authorization, User
from tests import servers
from tests.broker.nats.serving import Raw, serving
from tests.waiting import eventually

CONNECT = b'CONNECT {"user":"u","pass":"p","verbose":false,"name":"nm","lang":"py","version":"1"}\r\n'
SAID = CONNECT + b"SUB foo 1\r\nSUB bar.* q 2\r\nUNSUB 1 5\r\nPUB foo 3\r\nabc\r\n"
PATHS = [
    ("connz", {}),
    ("connz", {"subs": "1", "auth": "1"}),
    ("connz", {"subs": "detail"}),
    ("connz", {"state": "closed"}),
    ("connz", {"sort": "bytes_to", "offset": "-1"}),
    ("connz", {"sort": "reason", "state": "closed"}),
    ("connz", {"cid": "77"}),
    ("connz", {"sort": "foo"}),
    ("connz", {"sort": "stop"}),
    ("connz", {"auth": "foo"}),
    ("connz", {"state": "foo"}),
    ("connz", {"limit": "x"}),
    ("connz", {"cid": "abc"}),
    ("connz", {"subs": "foo"}),
    ("routez", {}),
    ("routez", {"subs": "foo"}),
    ("subsz", {}),
    ("subsz", {"subs": "1", "test": "bar.a"}),
    ("subsz", {"test": "bar.*"}),
    ("subsz", {"acc": "foo"}),
]


def shape(value: Any) -> Any:
    """Names and types."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items() if name != "http_req_stats"}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def strip(connection: dict[str, Any]) -> dict[str, Any]:
    """Without what is not always there, and with subscriptions in order: the real server's come in any."""
    found = {name: value for name, value in connection.items() if name != "rtt"}
    if "subscriptions_list_detail" in found:
        found["subscriptions_list_detail"] = sorted(found["subscriptions_list_detail"], key=lambda each: each["sid"])
    return found


async def _use(port: int) -> Raw:
    """Leaves one connection behind and returns another."""
    async with await Raw.connect(port, SAID) as client:
        await client.until_pong()
    client = await Raw.connect(port, SAID)
    await client.until_pong()
    return client


async def _ours() -> dict[str, Any]:
    users = Authorization(users=(User("u", "p"), User("z", "z")))
    found: dict[str, Any] = {}
    async with serving(authorization=users) as server:
        client = await _use(server.port)
        await eventually(lambda: len(server.closed) == 1)
        found["varz"] = status.varz(server)
        for name, query in PATHS:
            try:
                found[f"{name} {query}"] = json.loads("".join(written(getattr(status, name)(server, query))))
            except ValueError as refused:
                found[f"{name} {query}"] = str(refused)
        await client.close()
    return found


async def test_values() -> None:
    found = await _ours()
    varz = found["varz"]
    assert (varz["connections"], varz["total_connections"], varz["subscriptions"]) == (1, 2, 2)
    assert (varz["in_msgs"], varz["in_bytes"], varz["out_msgs"], varz["out_bytes"]) == (2, 6, 2, 6)
    [connection] = found["connz {}"]["connections"]
    assert (connection["cid"], connection["name"], connection["subscriptions"]) == (2, "nm", 2)
    assert (connection["in_msgs"], connection["out_bytes"]) == (1, 3)
    [connection] = found["connz {'subs': '1', 'auth': '1'}"]["connections"]
    assert connection["authorized_user"] == "u"
    assert connection["subscriptions_list"] == ["foo", "bar.*"]
    [connection] = found["connz {'subs': 'detail'}"]["connections"]
    assert connection["subscriptions_list_detail"] == [
        {"subject": "foo", "sid": "1", "msgs": 1, "max": 5, "cid": 2},
        {"subject": "bar.*", "qgroup": "q", "sid": "2", "msgs": 0, "cid": 2},
    ]
    [connection] = found["connz {'state': 'closed'}"]["connections"]
    assert connection["reason"] == "Client Closed"
    [subscription] = found["subsz {'subs': '1', 'test': 'bar.a'}"]["subscriptions_list"]
    assert subscription["account"] == "$G"


@pytest.mark.parametrize("version", servers.available()[:1])
async def test_nats_server_says_the_same(tmp_path: Path, version: str) -> None:
    ours = await _ours()
    port = servers.free_port()
    users = {"users": [{"user": "u", "password": "p"}, {"user": "z", "password": "z"}]}

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.read().decode().rstrip("\n")

    with servers.NatsServer(tmp_path, version, {"http_port": port, "authorization": users}, jetstream=False) as real:
        client = await _use(real.port)
        await eventually(lambda: "nm" in str(ask("connz?state=closed")))
        theirs = {"varz": ask("varz")}
        for name, query in PATHS:
            path = f"{name}?" + "&".join(f"{key}={value}" for key, value in query.items())
            theirs[f"{name} {query}"] = ask(path)
        await client.close()
    for path, wanted in theirs.items():
        got = ours[path]
        if isinstance(wanted, str):
            assert got == wanted
            continue
        for found in (got, wanted):
            # The one that asked whether the server is up was there, too.
            if isinstance(found.get("connections"), list):
                found["connections"] = [strip(each) for each in found["connections"] if "name" in each]
        assert shape(got) == shape(wanted), path
        assert list(got) == list(wanted), path
        if got.get("connections") and path != "varz":
            assert list(got["connections"][0]) == list(wanted["connections"][0]), path


async def test_health() -> None:
    async with serving() as server:
        assert status.healthz(server, {}) == (200, [])
        [wrong] = status.healthz(server, {"stream": "S"})[1]
        assert wrong["type"] == "BAD_REQUEST"
        with pytest.raises(ValueError, match="Error decoding boolean for 'js-enabled-only'"):
            status.healthz(server, {"js-enabled-only": "x"})
    assert status.healthz(server, {}) == (503, [{"type": "CONNECTION", "error": "not listening for clients"}])
