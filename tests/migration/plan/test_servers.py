"""What a plan asks for is what real servers take: every setting of streams and consumers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.plan.choices import DurablesChoice
from stantools.migration.plan.fields import CONSUMER_FIELDS, STREAM_FIELDS
from stantools.migration.plan.migration_plan import MigrationPlan
from stantools.migration.plan.overrides import Override, mapping_override
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.store.limits import ChannelLimits, StoreLimits
from stantools.streamfiles.stream_config import STREAM_MEMBERS
from tests import natsclient
from tests.migration.plan.stores import NOW, SECOND, Channel, durable, queue, write_store
from tests.migration.stores import opened

#: What servers know differs by version.
#: A value for every setting that a plan may have, the defaults aside.
STREAM_VALUES: dict[str, Any] = {
    "description": "text",
    "storage": "file",
    "num_replicas": 1,
    "placement": {"tags": []},
    "retention": "limits",
    "discard": "new",
    "max_age": 3600 * SECOND,
    "max_msgs": 50,
    "max_bytes": 1 << 20,
    "max_msgs_per_subject": 40,
    "max_msg_size": 1 << 19,
    "max_consumers": 9,
    "duplicate_window": 60 * SECOND,
    "compression": "s2",
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "deny_purge": False,
    "metadata": {"key": "value"},
}
CONSUMER_VALUES: dict[str, Any] = {
    "description": "text",
    "filter_subject": "orders.new",
    "ack_wait": SECOND,
    "max_ack_pending": 7,
    "max_deliver": 3,
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "replay_policy": "original",
    "num_replicas": 1,
    "inactive_threshold": 3600 * SECOND,
    "headers_only": True,
}
PULL_VALUES = {"max_waiting": 99}
PUSH_VALUES = {"deliver_subject": "to.me", "idle_heartbeat": SECOND, "flow_control": True}


async def request(client: Any, subject: str, body: Any) -> dict[str, Any]:
    answer = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode())).data)
    assert "error" not in answer, (subject, answer["error"])
    return dict(answer)


def same(asked: dict[str, Any], got: dict[str, Any], ignored: set[str]) -> None:
    for key, value in asked.items():
        if key == "metadata" and key not in ignored:
            assert value.items() <= got[key].items()
        elif key not in ignored and value not in (False, 0, {"tags": []}):
            assert got.get(key) == value, key


async def create(url: str, plan: MigrationPlan, ignored: set[str]) -> None:
    async with natsclient.connected(url) as client:
        for stream in plan.streams:
            await request(client, f"STREAM.CREATE.{stream.name}", stream.loading_config)
            answer = await request(client, f"STREAM.UPDATE.{stream.name}", stream.config)
            same(stream.config, answer["config"], ignored)
            for consumer in stream.consumers:
                body = {"stream_name": stream.name, "config": consumer.config}
                subject = f"CONSUMER.DURABLE.CREATE.{stream.name}.{consumer.name}"
                answer = await request(client, subject, body)
                same(consumer.config, answer["config"], set())


async def test_plans_are_taken(each_server: Any, tmp_path: Path) -> None:
    channels: dict[str | bytes, Channel] = {
        "orders.new": Channel(range(1, 9), [durable(1, "d", sent=5, pending=[3])]),
        "orders_old": Channel([4, 5], [durable(1, "d", sent=4), queue(2, "q:g", sent=4, pending=[4])]),
        "a b": Channel([1], [durable(1, "weird name.")]),
        "grün": Channel([1], [durable(1, "dü")]),
        "m.a": Channel([1], [durable(1, "d", "c1"), durable(2, "d", "c2")]),
        "m.b": Channel([1], [durable(1, "d")]),
        "x" * 250: Channel([1]),
        b"\xff": Channel([1], [durable(1, "\udcfe")]),
    }
    source = opened(write_store(tmp_path / "s", channels))
    version = tuple(map(int, each_server.version.split(".")))
    limits = StoreLimits(0, ChannelLimits(100, 1 << 20, 30 * SECOND, 0, 0))
    for consumers, prefix in ((DurablesChoice.PULL, ""), (DurablesChoice.PUSH, "p-")):
        options = PlanOptions(
            consumers=consumers,
            limits=limits,
            stream_prefix=prefix,
            subject_prefix=prefix and "p.",
            overrides=(mapping_override(f"m.*={prefix}M"), Override("m.*", settings={"max_age": 90 * SECOND})),
        )
        await create(each_server.url, make_plan(source, options, version, now_ns=NOW), set())  # type: ignore[arg-type]


async def test_every_setting_is_known(each_server: Any, tmp_path: Path) -> None:
    assert STREAM_VALUES.keys() == {field.key for field in STREAM_FIELDS}
    consumer_keys = {field.key for field in CONSUMER_FIELDS} - {"deliver_group"}
    assert CONSUMER_VALUES.keys() | PULL_VALUES.keys() | PUSH_VALUES.keys() == consumer_keys
    store = write_store(tmp_path / "s", {"orders.new": Channel([1])})
    version = tuple(map(int, each_server.version.split(".")))
    plan = make_plan(opened(store), PlanOptions(overrides=(Override(">", settings=STREAM_VALUES),)), now_ns=NOW)
    new = {field.key for field in STREAM_FIELDS if version < STREAM_MEMBERS[field.key].since}

    await create(each_server.url, plan, new)
    async with natsclient.connected(each_server.url) as client:
        for name, more in (("pull", PULL_VALUES), ("push", PUSH_VALUES)):
            config = {"durable_name": name, **CONSUMER_VALUES, **more}
            body = {"stream_name": "orders_new", "config": config}
            answer = await request(client, f"CONSUMER.DURABLE.CREATE.orders_new.{name}", body)
            same(config, answer["config"], set())


async def test_reserved_subjects_are_refused_by_servers_too(start_server: Any) -> None:
    server = start_server()

    async with natsclient.connected(server.url) as client:
        for subject in ("$JS.x", "$SYS.x", "$JSC.x"):
            with pytest.raises(AssertionError, match=r"code"):
                await request(client, "STREAM.CREATE.X", {"name": "X", "subjects": [subject]})
