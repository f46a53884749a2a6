from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.monitoring.metrics import Family
from tests.broker.monitoring.standins import MEMBER, SUBSCRIPTION, Got, Streaming, get, monitoring

Sample = tuple[str, tuple[tuple[str, str], ...]]


async def scrape(streaming: Streaming | None = None, query: str = "") -> tuple[Got, dict[Sample, float]]:
    async with monitoring(streaming) as server:
        got = await get(server.port, f"/metrics{query}")
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(got.body.decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return got, found


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


async def test_a_real_parser_reads_them() -> None:
    got, found = await scrape()
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert value(found, "stan_in_messages_total") == 6
    assert value(found, "stan_limit_age_seconds") == 90
    assert value(found, "stan_start_time_seconds") == pytest.approx(1795219259.747387842)
    assert value(
        found,
        "stan_server_info",
        cluster_id="test-cluster",
        server_id="i72CjO6NCF6RvYWfzrKV8f",
        version="0.23.2",
        state="STANDALONE",
        store="FILE",
    )
    assert value(found, "stan_channel_last_sequence", channel="orders.eu") == 7
    assert value(found, "stan_channel_messages", channel='<b>&"\\') == 1
    assert value(found, "nats_connections") == 4


async def test_lag_of_durables_and_groups() -> None:
    _, found = await scrape()
    durable = {"channel": "orders.eu", "client_id": "app-1", "durable": "audit", "queue": ""}
    group = {"channel": "orders.eu", "client_id": "", "durable": "", "queue": "w2:g2"}
    assert value(found, "stan_subscription_lag_messages", **durable) == 4
    assert value(found, "stan_subscription_pending_messages", **durable) == 3
    assert value(found, "stan_subscription_stalled", **durable) == 1
    assert value(found, "stan_subscription_members", **durable) == 1
    assert value(found, "stan_subscription_lag_messages", **group) == 2
    assert value(found, "stan_subscription_members", **group) == 0


async def test_messages_that_are_gone_are_no_lag() -> None:
    streaming = Streaming()
    channel = streaming.documents["channelsz"]["channels"][1]
    channel["subscriptions"] = [
        SUBSCRIPTION | {"last_sent": 0},
        SUBSCRIPTION | {"durable_name": "other", "last_sent": 9},
    ]
    _, found = await scrape(streaming)
    labels = {"channel": "orders.eu", "client_id": "app-1", "queue": ""}
    assert value(found, "stan_subscription_lag_messages", durable="audit", **labels) == 5
    assert value(found, "stan_subscription_lag_messages", durable="other", **labels) == 0


async def test_plain_subscriptions_of_a_client_each_have_to_get_everything() -> None:
    streaming = Streaming()
    channel = streaming.documents["channelsz"]["channels"][1]
    plain = {name: each for name, each in SUBSCRIPTION.items() if name != "durable_name"}
    channel["subscriptions"] = [plain | {"last_sent": 7}, plain | {"last_sent": 5}, plain | {"last_sent": 6}]
    _, found = await scrape(streaming)
    labels = {"channel": "orders.eu", "client_id": "app-1", "durable": "", "queue": ""}
    assert value(found, "stan_subscription_lag_messages", **labels) == 2
    assert value(found, "stan_subscription_members", **labels) == 3


async def test_members_of_a_group_are_one() -> None:
    streaming = Streaming()
    channel = streaming.documents["channelsz"]["channels"][1]
    members = [
        MEMBER | {"client_id": f"c{number}", "last_sent": number, "pending_count": 2, "is_offline": False}
        for number in range(4, 7)
    ]
    channel["subscriptions"] = members
    _, found = await scrape(streaming)
    group = {"channel": "orders.eu", "client_id": "", "durable": "", "queue": "w2:g2"}
    assert value(found, "stan_subscription_lag_messages", **group) == 1
    assert value(found, "stan_subscription_members", **group) == 3
    assert value(found, "stan_subscription_pending_messages", **group) == 6


@pytest.mark.parametrize("number", [255, 256, 257, 600])
async def test_many_channels(number: int) -> None:
    streaming = Streaming()
    streaming.documents["channelsz"]["channels"] = [_channel(f"c{each:04}") for each in range(number)]
    _, found = await scrape(streaming)
    assert sum(name == "stan_channel_messages" for name, _ in found) == number


async def test_a_channel_that_comes_meanwhile() -> None:
    streaming = Streaming()
    channels = [_channel(f"c{each:04}") for each in range(300)]
    streaming.documents["channelsz"]["channels"] = channels
    pages = streaming.channelsz

    def growing(server: Any, offset: int, limit: int, subs: bool) -> dict[str, Any]:
        if offset:
            channels.insert(0, _channel("b"))
        return pages(server, offset, limit, subs)

    streaming.channelsz = growing  # type: ignore[method-assign]
    _, found = await scrape(streaming)
    assert sum(name == "stan_channel_messages" for name, _ in found) == 300


async def test_what_is_too_much_can_be_left_out() -> None:
    names = {name for name, _ in (await scrape(query="?subs=0"))[1]}
    assert "stan_channel_messages" in names
    assert not any(name.startswith("stan_subscription_") for name in names)
    names = {name for name, _ in (await scrape(query="?channels=0"))[1]}
    assert "stan_channels" in names
    assert not any(name.startswith("stan_channel_") for name in names)


async def test_every_name_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    documented = re.findall(r"^\| `((?:stan|nats)_\w+)` \|", page, re.MULTILINE)
    got, _ = await scrape()
    assert documented == re.findall(r"^# TYPE (\S+)", got.body.decode(), re.MULTILINE)


def test_numbers_and_labels_are_written_exactly() -> None:
    family = Family("a", "gauge", "What.")
    family.add((1 << 64) - 1, x="line\nbreak")
    family.add(0.5)
    family.add(float("inf"))
    family.add(float("-inf"))
    family.add(float("nan"))
    assert "".join(family.lines()) == (
        '# HELP a What.\n# TYPE a gauge\na{x="line\\nbreak"} 18446744073709551615\na 0.5\na +Inf\na -Inf\na NaN\n'
    )
    assert list(Family("b", "gauge", "What.").lines()) == []


def _channel(name: str) -> dict[str, Any]:
    return {"name": name, "msgs": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "subs_count": 0}
