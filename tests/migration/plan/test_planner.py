"""Plans for stores of our own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import UsageError
from stantools.format.encryption import ChannelCipher, Cipher
from stantools.migration.plan.checks import find_changes, find_problems
from stantools.migration.plan.choices import DurablesChoice, LoadMethod, OriginHeaders
from stantools.migration.plan.migration_plan import (
    ConsumerKind,
    ConsumerProgress,
    MigrationPlan,
    Remark,
    RemarkLevel,
    StreamPlan,
    TargetKind,
    TargetRef,
)
from stantools.migration.plan.overrides import Override, mapping_override
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.plan.remarks import older_than
from stantools.store.limits import UNLIMITED, ChannelLimits, PatternLimits, StoreLimits
from tests.migration.plan.stores import NOW, SECOND, START, Channel, durable, queue, sub, write_store
from tests.migration.stores import opened

SHOP = {
    "orders.new": Channel(range(1, 11), [durable(1, "d", sent=5, pending=[3]), sub(2, 9, [9], client_id="c1")]),
    "orders.old": Channel([4, 5, 9], [durable(1, "d", "c2", sent=9), queue(2, "q:g", sent=4, pending=[4])], 3 * SECOND),
    "stock_1": Channel([]),
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write_store(tmp_path / "shop", SHOP)


def plan_for(
    store: Path, options: PlanOptions | None = None, *, version: Any = None, patterns: Sequence[str] = (), **source: Any
) -> MigrationPlan:
    return make_plan(opened(store, *patterns, **source), options, version, now_ns=NOW)


def texts(notes: tuple[Remark, ...] | list[Remark], level: RemarkLevel = RemarkLevel.WARNING) -> list[str]:
    return [f"{note.about}: {note.text}" for note in notes if note.level is level]


def stream(plan: MigrationPlan, name: str) -> StreamPlan:
    return next(each for each in plan.streams if each.name == name)


def test_a_channel_becomes_a_stream(shop: Path) -> None:
    plan = plan_for(shop)
    assert [each.name for each in plan.streams] == ["orders_new", "orders_old", stream_of("stock_1")]
    new = plan.streams[0]
    assert new.config == {
        "name": "orders_new",
        "subjects": ["orders.new"],
        "description": "NATS Streaming channel orders.new",
        "storage": "file",
        "num_replicas": 1,
        "retention": "limits",
        "discard": "old",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "duplicate_window": 120 * SECOND,
        "metadata": {"stantools.channel": "orders.new"},
    }
    assert (new.renumbered, new.origin_headers, new.created_ns) == (False, False, START)
    assert (new.messages, new.first, new.last, new.bytes) == (10, 1, 10, 70)
    (consumer,) = new.consumers
    assert (consumer.name, consumer.position, consumer.kind) == ("d", ConsumerProgress(5, 2, (3,)), ConsumerKind.PULL)
    assert "filter_subject" not in consumer.config
    empty = plan.streams[2]
    assert (empty.messages, empty.first, empty.last, empty.created_ns) == (0, 0, 0, NOW)
    assert [left.what for left in plan.left_out] == ["subscription", "client"]
    assert plan.way is LoadMethod.ARCHIVE
    assert find_problems(plan) == []
    assert not plan.lossy
    assert plan.source.path == str(shop)


def stream_of(channel: str) -> str:
    from stantools.nats.stream_names import stream_name

    return stream_name(channel)


def test_old_servers_get_no_metadata(shop: Path) -> None:
    assert "metadata" not in plan_for(shop, version=(2, 9, 10)).streams[0].settings
    plan = plan_for(shop, version=(2, 10, 0))
    assert "metadata" in plan.streams[0].settings
    assert plan.target.version == (2, 10, 0)


def test_plans_of_the_same_store_are_the_same_work(shop: Path) -> None:
    one = plan_for(shop)
    two = make_plan(opened(shop), now_ns=NOW + 1)
    assert one.digest == two.digest
    assert one.at(TargetRef(TargetKind.BACKUP, ("x",))).digest == one.digest
    assert plan_for(shop, PlanOptions(replicas=3)).digest != one.digest


def test_prefixes(shop: Path) -> None:
    plan = plan_for(shop, PlanOptions(stream_prefix="STAN-", subject_prefix="stan."))
    assert plan.streams[0].name == "STAN-orders_new"
    assert plan.streams[0].subjects == ("stan.orders.new",)
    assert not any("core NATS" in note.text for note in plan.notes)


def test_many_channels_into_one_stream(shop: Path) -> None:
    plan = plan_for(shop, PlanOptions(overrides=(mapping_override("orders.*=ORDERS"),), subject_prefix="s."))
    orders = stream(plan, "ORDERS")
    assert orders.renumbered
    assert orders.origin_headers
    assert orders.subjects == ("s.orders.*",)
    assert [(part.channel, part.subject) for part in orders.parts] == [
        ("orders.new", "s.orders.new"),
        ("orders.old", "s.orders.old"),
    ]
    assert (orders.messages, orders.first, orders.last) == (13, 1, 13)
    assert [(c.name, c.channel, c.config["filter_subject"]) for c in orders.consumers] == [
        ("c1_d", "orders.new", "s.orders.new"),
        ("c2_d", "orders.old", "s.orders.old"),
        ("g", "orders.old", "s.orders.old"),
    ]
    assert orders.config["metadata"] == {"stantools.channels": "2"}
    assert any("renumbered" in note.text for note in plan.notes)
    assert find_problems(plan) == []


def test_a_pattern_is_not_the_subject_where_it_takes_from_others(shop: Path) -> None:
    overrides = (mapping_override("orders.>=A"), mapping_override("orders.old=B"))
    plan = plan_for(shop, PlanOptions(overrides=overrides))
    assert stream(plan, "A").subjects == ("orders.new",)
    assert stream(plan, "B").subjects == ("orders.old",)
    everything = plan_for(shop, PlanOptions(overrides=(mapping_override(">=ALL"),)))
    # `>` would take the subjects of the system too.
    assert everything.streams[0].subjects == ("orders.new", "orders.old", "stock_1")
    assert find_problems(plan) == find_problems(everything) == []


def test_overrides(shop: Path) -> None:
    overrides = (
        Override("orders.new", subject="neu", settings={"max_age": 60 * SECOND, "num_replicas": 3}),
        Override("orders.old", skip=True),
        Override("stock_1", stream="STOCK", consumers=DurablesChoice.NONE, origin_headers=OriginHeaders.ON),
        Override("typo", skip=True),
    )
    plan = plan_for(shop, PlanOptions(overrides=overrides))
    assert [each.name for each in plan.streams] == ["STOCK", "orders_new"]
    new = plan.streams[1]
    assert new.subjects == ("neu",)
    assert (new.settings["max_age"], new.settings["duplicate_window"]) == (60 * SECOND, 60 * SECOND)
    assert plan.streams[0].origin_headers
    (skipped,) = [left for left in plan.left_out if left.what == "channel"]
    assert skipped.channel == "orders.old"
    assert "3 messages and 2 subscriptions" in skipped.detail
    assert any("'typo' matches no channel" in text for text in texts(plan.notes))


def test_durables_can_be_left_or_pushed(shop: Path) -> None:
    plan = plan_for(shop, PlanOptions(consumers=DurablesChoice.NONE))
    assert plan.consumers == 0
    assert sum(left.what == "durable" for left in plan.left_out) == 3
    plan = plan_for(shop, PlanOptions(consumers=DurablesChoice.PUSH))
    assert [c.config["deliver_subject"] for c in stream(plan, "orders_old").consumers] == [
        "deliver.orders_old.d",
        "deliver.orders_old.g",
    ]
    assert find_problems(plan) == []


def test_channels_of_a_stream_must_agree(shop: Path) -> None:
    overrides = (
        mapping_override("orders.*=ORDERS"),
        Override("orders.new", settings={"max_age": SECOND}),
        Override("orders.old", settings={"max_age": 2 * SECOND}),
    )
    with pytest.raises(UsageError) as caught:
        plan_for(shop, PlanOptions(overrides=overrides))
    assert "'orders.new'" in caught.value.message
    assert "max_age" in caught.value.message


def test_names_that_meet_get_a_hash(tmp_path: Path) -> None:
    channels = ("Orders", "orders", "x.y", "x y", "$JS.API.x")
    plan = plan_for(write_store(tmp_path / "s", {name: Channel([1]) for name in channels}))
    names = [each.name for each in plan.streams]
    assert len({name.casefold() for name in names}) == 5
    assert sum(name.lower().startswith("orders-") for name in names) == 2
    spaced = next(each for each in plan.streams if each.parts[0].channel == "x y")
    assert spaced.subjects[0].startswith("x_y-")
    (problem,) = find_problems(plan)
    assert (problem.level, "'$JS.>'" in problem.text) == (RemarkLevel.PROBLEM, True)
    assert find_problems(plan_for(tmp_path / "s", PlanOptions(subject_prefix="stan."))) == []


def test_a_name_given_for_one_channel_is_left_to_it(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", {"a": Channel([1]), "b": Channel([1])})
    plan = plan_for(store, PlanOptions(overrides=(Override("b", stream="A"),)))
    assert [each.parts[0].channel for each in plan.streams if each.name == "A"] == ["b"]
    assert find_problems(plan) == []


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    plan = plan_for(write_store(tmp_path / "s", {b"a\xff.b": Channel([1], [durable(1, "d\udcfe")])}))
    (one,) = plan.streams
    assert one.parts[0].channel == "a\udcff.b"
    assert one.subjects[0].isascii()
    for text in (one.config["description"], one.consumers[0].config["description"], one.name, one.consumers[0].name):
        text.encode()
    assert one.config["metadata"]["stantools.channel"].encode()
    assert find_problems(plan) == []


def test_publishing(shop: Path) -> None:
    plan = plan_for(shop, PlanOptions(via="publish"))
    assert all(each.origin_headers for each in plan.streams)
    assert any("time of publishing" in text for text in texts(plan.notes))
    plan = plan_for(shop, PlanOptions(via="publish", origin_headers=OriginHeaders.OFF))
    assert sum("the old ones are lost" in text for text in texts(find_problems(plan))) == 3


def test_secrets_do_not_go_into_plans(shop: Path) -> None:
    target = TargetRef(places=("nats://me:secret@host:4222", "token@host", "tls://host/x@y"))
    plan = plan_for(shop, PlanOptions(target=target))
    assert plan.target.places == ("nats://host:4222", "host", "tls://host/x@y")
    kept = TargetRef(TargetKind.BACKUP, ("/a@b",))
    assert plan_for(shop, PlanOptions(target=kept)).target == kept


def limits(**values: Any) -> StoreLimits:
    return StoreLimits(0, ChannelLimits(**{"max_msgs": 0, "max_bytes": 0, "max_subs": 0} | values))


def test_limits_of_channels(shop: Path) -> None:
    given = StoreLimits(
        0,
        UNLIMITED,
        {
            "orders.*": PatternLimits(100, 5000, 7200 * SECOND, 10, 60 * SECOND),
            "orders.old": PatternLimits(200),
        },
    )
    plan = plan_for(shop, PlanOptions(limits=given))
    old = stream(plan, "orders_old").settings
    assert (old["max_msgs"], old["max_bytes"], old["max_age"]) == (200, 5000, 7200 * SECOND)
    assert stream(plan, stream_of("stock_1")).settings["max_msgs"] == -1
    assert [left.detail.split(":")[0] for left in plan.left_out if left.what == "limit"] == [
        "max_subs (10)",
        "max_inactivity (1m)",
    ]
    assert not any("limits of channels are not in the store" in note.text for note in plan.notes)
    together = plan_for(shop, PlanOptions(limits=given, overrides=(mapping_override("orders.*=O"),)))
    both = stream(together, "O").settings
    assert (both["max_msgs"], both["max_msgs_per_subject"], both["max_bytes"]) == (-1, 200, 10000)
    everything = plan_for(shop, PlanOptions(limits=given, overrides=(mapping_override(">=O"),)))
    assert everything.streams[0].settings["max_msgs_per_subject"] == -1
    assert not everything.streams[0].limited
    assert both != stream(together, "O").loading_config


def test_limits_are_lifted_while_loading(shop: Path) -> None:
    one = plan_for(shop, PlanOptions(limits=limits(max_msgs=3, max_age_ns=5))).streams[0]
    assert one.limited
    assert one.loading_config == {**one.config, "max_msgs": -1, "max_age": 0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_msgs": 9}, "1 message more than max_msgs 9"),
        ({"max_msgs": 10}, ""),
        # The last message of orders.new is 9 s younger than the first, and now is an hour after that one.
        ({"max_age_ns": 3596 * SECOND}, "4 of 10 messages are older than max_age 59m56s"),
        ({"max_age_ns": 3600 * SECOND}, ""),
        ({"max_age_ns": 60 * SECOND}, "10 of 10 messages are older than max_age 1m"),
        ({"max_bytes": 100}, "max_bytes is 100"),
        ({"max_bytes": 470}, ""),
    ],
)
def test_what_limits_would_remove_is_told(shop: Path, given: dict[str, int], said: str) -> None:
    plan = plan_for(shop, PlanOptions(limits=limits(**given)), patterns=("orders.new",))
    told = texts(plan.notes)
    assert told == [] if not said else said in "".join(told), told


def test_messages_per_subject_that_would_be_removed(shop: Path) -> None:
    overrides = (mapping_override("orders.*=O"),)
    plan = plan_for(shop, PlanOptions(limits=limits(max_msgs=8), overrides=overrides))
    assert any("2 messages more than max_msgs_per_subject 8" in text for text in texts(plan.notes))


def test_counting_old_messages_reads_few(tmp_path: Path) -> None:
    present = [n for n in range(1, 9000) if n % 7 and not 3000 < n < 4000]
    (channel,) = opened(write_store(tmp_path / "s", {"a": Channel(present)})).channels
    for count in (0, 1, 2571, len(present) - 1, len(present)):
        assert older_than(channel, START + count * SECOND) == count
        assert older_than(channel, START + count * SECOND - 1) == count


def test_gaps_and_lost_messages_are_told(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", {"a": Channel([1, 2, 5, 9]), "b": Channel(range(1, 6))})
    data = store / "b" / "msgs.1.dat"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    data.write_bytes(damaged)
    plan = plan_for(store)
    assert "a: 5 sequences already missing between others: 3-4, 6-8; the gaps are kept" in texts(plan.notes)
    assert plan.lost == 1
    assert plan.lossy
    assert "b: 1 message already missing, damaged or lost: 3" in texts(plan.notes)
    (left,) = [each for each in plan.left_out if each.loss]
    assert (left.what, left.channel, left.count) == ("message", "b", 1)


def test_encrypted_payloads_are_told(tmp_path: Path) -> None:
    sealed = ChannelCipher(b"key", b"a").encrypt(b"x" * 40, Cipher.AES)
    store = write_store(tmp_path / "s", {"a": Channel(range(1, 4), payload=sealed)})
    assert any("may be encrypted" in text for text in texts(plan_for(store).notes))
    plan = plan_for(store, PlanOptions(decrypted=True), key=b"key")
    assert texts(plan.notes) == []
    assert plan.source.decrypted


def test_times_that_go_back_are_told(tmp_path: Path) -> None:
    plan = plan_for(write_store(tmp_path / "s", {"a": Channel(range(1, 4), step=-SECOND)}))
    assert any("times go back" in text for text in texts(plan.notes, RemarkLevel.INFO))


def test_generations_become_streams_of_their_own(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", {"a": Channel(range(1, 31))})
    other = write_store(tmp_path / "t", {"a": Channel(range(1, 11), step=40 * SECOND)})
    (other / "a" / "msgs.1.dat").rename(store / "a" / "msgs.2.dat")
    plan = plan_for(store)
    assert [each.name for each in plan.streams] == ["a", "a_generation-1"]
    assert any("older generation of 'a'" in text for text in texts(plan.notes))
    assert plan_for(store, generation="newest").source.generation == "newest"


def test_changes_of_the_store_are_noticed(shop: Path) -> None:
    plan = plan_for(shop, PlanOptions(overrides=(Override("stock_1", skip=True),)))
    assert find_changes(plan, opened(shop)) == []
    changed = {
        "orders.new": Channel(range(1, 12), SHOP["orders.new"].subs),
        "orders.old": Channel([4, 5, 9], [durable(1, "d", "c2", sent=9)], 3 * SECOND),
        "stock_1": Channel([]),
        "extra": Channel([1]),
    }
    other = write_store(shop.with_name("other"), changed)
    notes = find_changes(plan, opened(other))
    assert texts(notes, RemarkLevel.PROBLEM) == [
        "orders.new: the channel has changed since the plan was made: messages 10 became 11, last 10 became 11, "
        "bytes 70 became 77",
        "orders.old: the channel has changed since the plan was made: its subscriptions have changed",
    ]
    assert [note.about for note in notes if note.level is RemarkLevel.INFO] == ["extra"]
    gone = write_store(shop.with_name("gone"), {"orders.new": SHOP["orders.new"]})
    assert texts(find_changes(plan, opened(gone)), RemarkLevel.PROBLEM) == ["orders.old: it is no longer in the store"]


def test_other_messages_of_the_same_size_are_noticed(tmp_path: Path) -> None:
    plan = plan_for(write_store(tmp_path / "s", {"a": Channel([1, 2, 3])}))
    other = opened(write_store(tmp_path / "t", {"a": Channel([1, 2, 3], step=SECOND + 1)}))
    (note,) = find_changes(plan, other)
    assert "its messages are different" in note.text


def test_an_empty_selection_is_a_problem(shop: Path) -> None:
    plan = plan_for(shop, patterns=("nothing",))
    assert [note.level for note in find_problems(plan)] == [RemarkLevel.PROBLEM]
