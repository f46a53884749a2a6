"""Monitoring of real servers: a streaming server in a simulated world, and a NATS server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.monitoring.monitoring_server import MonitoringServer
from broker.nats.nats_server import NatsServer
from tests import natsclient
from tests.broker.monitoring.standins import get
from tests.broker.nats.serving import serving
from tests.broker.streaming.world import World
from tests.conftest import load_expected


@contextlib.asynccontextmanager
async def monitored(world: World) -> AsyncIterator[tuple[MonitoringServer, NatsServer]]:
    async with serving() as server:
        monitoring = MonitoringServer(server, world.server)
        await monitoring.start("127.0.0.1", 0)
        try:
            yield monitoring, server
        finally:
            await monitoring.stop()


@pytest.fixture
def world() -> World:
    """Two channels, a durable, a plain subscription, a queue group, an offline durable."""
    made = World()
    for name in (b"app-1", b"app-2"):
        made.connect(name)
    made.publish(b"orders.eu", b"1", b"2", b"3", b"4", b"5", client=b"app-1")
    made.publish(b"<alerts>"[1:-1], b"x", client=b"app-1")
    made.subscribe(b"orders.eu", b"app-1", durable_name=b"audit", max_in_flight=3)
    made.subscribe(b"orders.eu", b"app-2")
    made.subscribe(b"orders.eu", b"app-2", q_group=b"g2", durable_name=b"w2")
    made.connect(b"gone")
    made.subscribe(b"alerts", b"gone", durable_name=b"later")
    made.close(b"gone")
    return made


def names(value: Any) -> Any:
    """Names in their order, without values; of a list, all the ways in which its entries look."""
    if isinstance(value, dict):
        return [(name, names(each)) for name, each in value.items()]
    if isinstance(value, list):
        return sorted({json.dumps(names(each)) for each in value})
    return type(value).__name__


@pytest.mark.golden
async def test_documents_look_as_the_originals_do(world: World) -> None:
    golden = load_expected("durables")["monitoring"]

    async with monitored(world) as (monitoring, _):
        for endpoint in ("serverz", "storez"):
            ours = (await get(monitoring.port, f"/streaming/{endpoint}")).json
            assert names(ours) == names(golden[endpoint])
        ours = (await get(monitoring.port, "/streaming/channelsz?subs=1")).json
        theirs = golden["channelsz"]
        assert names(ours | {"channels": []}) == names(theirs | {"channels": []})
        shapes = {shape for channel in theirs["channels"] for shape in names(channel["subscriptions"])}
        for channel in ours["channels"]:
            assert list(channel) == list(theirs["channels"][0])
            assert shapes.issuperset(names(channel["subscriptions"]))
        ours = (await get(monitoring.port, "/streaming/clientsz?subs=1")).json
        theirs = golden["clientsz"]
        assert names(ours | {"clients": []}) == names(theirs | {"clients": []})
        for client in ours["clients"]:
            assert list(client) == list(theirs["clients"][0])
            for subscriptions in client["subscriptions"].values():
                assert shapes.issuperset(names(subscriptions))


async def test_values_are_those_of_the_server(world: World) -> None:
    async with monitored(world) as (monitoring, _):

        async def ask(path: str) -> Any:
            return (await get(monitoring.port, f"/streaming/{path}")).json

        server = await ask("serverz")
        assert (server["clients"], server["channels"], server["total_msgs"], server["in_msgs"]) == (2, 2, 6, 6)
        assert (server["subscriptions"], server["out_msgs"]) == (4, 3 + 5 + 5 + 1)
        assert (await ask("channelsz"))["names"] == ["alerts", "orders.eu"]
        channel = await ask("channelsz?channel=orders.eu&subs=1")
        assert [(each["is_stalled"], each["pending_count"]) for each in channel["subscriptions"]] == [
            (True, 3),
            (False, 5),
            (False, 5),
        ]
        offline = (await ask("channelsz?channel=alerts&subs=1"))["subscriptions"]
        assert [(each["is_offline"], each["client_id"]) for each in offline] == [(True, "gone")]
        client = await ask("clientsz?client=app-2&subs=1")
        assert list(client["subscriptions"]) == ["orders.eu"]
        assert (await get(monitoring.port, "/streaming/clientsz?client=gone")).status == 404
        assert (await get(monitoring.port, "/streaming/channelsz?channel=%ff")).status == 404
        assert (await get(monitoring.port, "/streaming/isFTActive")).status == 204


async def test_metrics_of_real_servers(world: World) -> None:
    async with monitored(world) as (monitoring, _):
        text = (await get(monitoring.port, "/metrics")).body.decode()
        found = {
            (sample.name, sample.labels.get("durable"), sample.labels.get("queue")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["stan_stored_messages", None, None] == 6
        assert found["stan_subscription_lag_messages", "audit", ""] == 2
        assert found["stan_subscription_pending_messages", "", "w2:g2"] == 5
        assert found["nats_memory_bytes", None, None] > 1 << 20


async def test_endpoints_of_a_real_nats_server() -> None:
    async with (
        monitored(World()) as (monitoring, server),
        natsclient.connected(f"nats://127.0.0.1:{server.port}", name="somebody") as client,
    ):
        await client.subscribe("foo.>", "workers")
        await client.flush()
        varz = (await get(monitoring.port, "/varz")).json
        assert list(varz)[:6] == ["server_id", "server_name", "version", "proto", "go", "host"]
        members = list(varz)
        assert members[members.index("ping_max") + 1 :][:4] == [
            "http_host",
            "http_port",
            "http_base_path",
            "https_port",
        ]
        assert (varz["http_port"], varz["port"], varz["connections"]) == (monitoring.port, server.port, 1)
        assert varz["http_req_stats"] == {"/varz": 1}
        assert members[-1] == "system_account"
        got = await get(monitoring.port, "/connz?subs=1")
        assert rb"foo.\u003e" in got.body
        assert [each["name"] for each in got.json["connections"]] == ["somebody"]
        listed = (await get(monitoring.port, "/subsz?subs=1")).json["subscriptions_list"]
        assert [(each["subject"], each["qgroup"]) for each in listed] == [("foo.>", "workers")]
        for target, text in (
            ("/connz?sort=foo", "invalid sorting option: foo"),
            (
                "/connz?auth=x",
                "Error decoding boolean for 'auth': strconv.ParseBool: parsing \"x\": invalid syntax",
            ),
            ("/subsz?test=a..b", "invalid test subject, must be valid publish subject: a..b"),
            (
                "/routez?subs=x",
                "Error decoding boolean for 'subs': strconv.ParseBool: parsing \"x\": invalid syntax",
            ),
        ):
            wrong = await get(monitoring.port, target)
            assert (wrong.status, wrong.body.decode()) == (400, text)
        assert (await get(monitoring.port, "/healthz")).body == b'{"status":"ok"}'
