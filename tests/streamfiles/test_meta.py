"""Configurations in an archive (jetstream-migration.md sections 5.1, 9 and 16)."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from stantools.errors import RefusedError
from stantools.notation import format_time
from stantools.streamfiles import highwayhash
from stantools.streamfiles.meta import consumer_meta, full_consumer_meta, full_stream_meta, meta_sum, stream_meta
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, STREAM_MEMBERS
from tests.streamfiles.making import STREAM_DEFAULTS

CREATED = 1_600_000_000_123_456_789
STREAM: dict[str, Any] = {"name": "ORDERS", "subjects": ["foo.bar"], **STREAM_DEFAULTS}


def test_stream_vector(used_kernel: ModuleType) -> None:
    data = stream_meta("ORDERS", STREAM, CREATED)
    assert len(data) == 290
    assert data.startswith(
        b'{"Created":"2020-09-13T12:26:40.123456789Z","name":"ORDERS","subjects":["foo.bar"],"retention"'
    )
    assert meta_sum(data, highwayhash.stream_key("ORDERS")) == b"435edc4dcf00e753"


def test_consumer_vector(used_kernel: ModuleType) -> None:
    data = consumer_meta("dur1", {"durable_name": "dur1"}, CREATED)
    assert len(data) == 233
    assert meta_sum(data, highwayhash.consumer_key("ORDERS", "dur1")) == b"69b57a2208dd7ec2"


def test_what_is_not_given_is_as_in_the_vectors() -> None:
    assert stream_meta("ORDERS", {"subjects": ["foo.bar"]}, CREATED) == stream_meta("ORDERS", STREAM, CREATED)


def test_only_fields_that_every_server_knows() -> None:
    later = {
        "metadata": {"a": "b"},
        "compression": "s2",
        "first_seq": 5,
        "consumer_limits": {},
        "subject_transform": {},
        "template_owner": "x",
        "allow_msg_ttl": True,
    }
    known = {"description": "é", "allow_direct": True, "deny_purge": True, "max_age": 7}
    found = json.loads(stream_meta("S", {**later, **known}, CREATED))
    assert not later.keys() & found.keys()
    assert {name: found[name] for name in known} == known
    later = {"metadata": {}, "filter_subjects": ["a"], "priority_groups": ["g"], "mem_storage": True, "pause_until": ""}
    known = {"description": "é", "deliver_subject": "d", "deliver_group": "g", "filter_subject": "f", "max_deliver": 3}
    found = json.loads(consumer_meta("c", {**later, **known}, CREATED))
    assert not later.keys() & found.keys()
    assert {name: found[name] for name in known} == known


def test_the_name_is_the_one_that_the_hashes_are_for() -> None:
    assert json.loads(stream_meta("S", {"name": "other"}, CREATED))["name"] == "S"
    found = json.loads(consumer_meta("c", {"durable_name": "other"}, CREATED))
    assert (found["Name"], found["durable_name"]) == ("c", "c")


def test_the_whole_configuration_is_stored_in_the_order_of_its_declarations() -> None:
    config = dict.fromkeys(CONSUMER_MEMBERS, "x")
    assert list(json.loads(full_consumer_meta("c", config, CREATED))) == ["Created", "Name", *CONSUMER_MEMBERS]
    found = list(json.loads(full_stream_meta(dict.fromkeys(reversed(STREAM_MEMBERS), "x"), CREATED)))
    assert found == ["Created", *(name for name in STREAM_MEMBERS if name != "first_seq")]


def test_memory_is_refused() -> None:
    with pytest.raises(RefusedError, match="storage memory"):
        stream_meta("S", {"storage": "memory"}, CREATED)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RefusedError, match="not UTF-8"):
        stream_meta("S", {"subjects": ["a\udcff"]}, CREATED)


def test_times() -> None:
    rows: list[tuple[int, str]] = [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        ((1 << 63) - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(1 << 63), "1677-09-21T00:12:43.145224192Z"),
        (CREATED, "2020-09-13T12:26:40.123456789Z"),
    ]
    for timestamp, text in rows:
        assert format_time(timestamp) == text, (timestamp, text)
