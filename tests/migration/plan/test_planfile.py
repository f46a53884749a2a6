"""The plan file: what is written is read back, and every wrong edit is told with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import StantoolsError, StoreUnreadableError, StoreUnwritableError, UsageError
from stantools.migration.plan import document
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.fields import CONSUMER_DEFAULTS
from stantools.migration.plan.migration_plan import (
    ChannelPart,
    ConsumerKind,
    ConsumerPlan,
    ConsumerProgress,
    MigrationPlan,
    OmittedPart,
    Remark,
    RemarkLevel,
    SourceRef,
    StreamPlan,
    TargetKind,
    TargetRef,
)
from stantools.migration.plan.overrides import mapping_override
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planfile import derived_filter, read_plan, render_plan, write_plan
from stantools.migration.plan.planner import make_plan
from tests.conftest import cases_by_kind
from tests.migration.plan.stores import CRC, NOW, SECOND, Channel, durable, queue, sub, write_store
from tests.migration.stores import opened

FILE = Path("plan.yaml")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(text: str) -> MigrationPlan:
    FILE.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_plan(FILE)


def again(plan: MigrationPlan) -> MigrationPlan:
    return parsed(render_plan(plan, ("do this",)))


# --- properties

_bytes_text = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_text = st.one_of(
    st.sampled_from(
        ["on", "no", "1", "1e3", "~", "a: b", "- x", "#c", "'", '"', "a\nb", "\u2028", "\ufeff", " x ", "0x1", "="]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    _bytes_text,
)
_name = st.sampled_from(
    ["a", "orders_new", "on", "null", "1", "2.5".replace(".", "_"), "-x", "$a", "grün", "~", "=", "y"]
)
_subject = st.sampled_from(["a", "a.b", "1.2", "on", "x.é", "$q", "-", "0"])
_count = st.integers(0, 2**63 - 1)
_time = st.integers(-(2**63), 2**63 - 1)
_positions = st.builds(
    ConsumerProgress.of, st.just(2**64 - 1), st.sets(st.integers(1, 2**64 - 1) | st.integers(1, 300), max_size=80)
)
_parts = st.builds(
    ChannelPart,
    _text.filter(bool),
    _subject,
    _count,
    _count,
    _count,
    _count,
    _count,
    _time,
    _time,
    st.sampled_from(["", "0123456789abcdef-0123456789abcdef"]),
)
_stream_settings = st.fixed_dictionaries(
    {
        "storage": st.sampled_from(["file", "memory"]),
        "max_age": _count,
        "max_bytes": st.integers(1, 2**63 - 1) | st.just(-1),
    },
    optional={
        "description": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "num_replicas": st.integers(1, 5),
        "retention": st.just("limits"),
        "discard": st.sampled_from(["old", "new"]),
        "max_msgs": st.integers(1, 2**63 - 1) | st.just(-1),
        "max_msg_size": st.integers(1, 2**31 - 1) | st.just(-1),
        "max_consumers": st.integers(1, 2**31 - 1) | st.just(-1),
        "max_msgs_per_subject": st.integers(1, 9) | st.just(-1),
        "duplicate_window": st.integers(10**8, 2**63 - 1),
        "compression": st.sampled_from(["none", "s2"]),
        "allow_direct": st.booleans(),
        "deny_purge": st.booleans(),
        "placement": st.fixed_dictionaries({"cluster": _name}, optional={"tags": st.lists(_text, max_size=2)}),
        "metadata": st.dictionaries(_text.filter(bool), _text, max_size=2),
    },
)
_consumer_settings = st.fixed_dictionaries(
    {"ack_wait": st.integers(1, 2**63 - 1), "max_ack_pending": st.integers(1, 2**31 - 1) | st.just(-1)},
    optional={
        "description": _text.filter(bool),
        "deliver_subject": _subject,
        "deliver_group": _name,
        "replay_policy": st.just("original"),
        "max_waiting": st.integers(1, 99),
        "num_replicas": st.integers(0, 5),
        "idle_heartbeat": _count,
        "inactive_threshold": _count,
        "flow_control": st.booleans(),
        "headers_only": st.booleans(),
    },
)


@st.composite
def _streams(draw: st.DrawFn) -> StreamPlan:
    parts = tuple(draw(st.lists(_parts, min_size=1, max_size=3)))
    own = tuple(part.subject for part in parts)
    subjects = draw(st.sampled_from([own, (">",), ("a.*", "é.>")]))
    consumers = []
    for _ in range(draw(st.integers(0, 2))):
        part = draw(st.sampled_from(parts))
        given = CONSUMER_DEFAULTS | draw(_consumer_settings)
        first = next(each for each in parts if each.channel == part.channel)
        if (wanted := derived_filter(subjects, first.subject)) is not None:
            given["filter_subject"] = draw(st.sampled_from([wanted, "other.>"]))
        consumers.append(
            ConsumerPlan(
                draw(_name),
                part.channel,
                draw(_text),
                draw(_text),
                draw(_text),
                draw(st.integers(0, 9)),
                draw(st.sampled_from(ConsumerKind)),
                given,
                draw(_positions),
            )
        )
    return StreamPlan(
        draw(_name),
        subjects,
        parts,
        draw(_stream_settings),
        len(parts) > 1,
        draw(st.booleans()),
        tuple(consumers),
        draw(_time),
    )


_targets = st.one_of(
    st.builds(
        TargetRef,
        st.sampled_from([TargetKind.BACKUP, TargetKind.STORE]),
        st.lists(_text, max_size=1).map(tuple),
        st.none() | st.tuples(*[st.integers(0, 10**6)] * 3),
    ),
    st.just(TargetRef(TargetKind.SERVER, ("nats://a:4222", "tls://b"), (2, 10, 26))),
)
_plans = st.builds(
    MigrationPlan,
    st.builds(
        SourceRef,
        _text.filter(lambda text: text and "\0" not in text),
        st.lists(_text, max_size=2).map(tuple),
        st.lists(_text, max_size=2).map(tuple),
        _text.filter(bool),
        st.booleans(),
        st.booleans(),
        st.none() | st.integers(0, 2**32 - 1),
    ),
    _targets,
    st.sampled_from(LoadMethod),
    st.lists(_streams(), max_size=4).map(tuple),
    st.lists(st.builds(OmittedPart, _text, _text, _text, st.integers(0, 9), st.booleans()), max_size=2).map(tuple),
    st.lists(st.builds(Remark, st.sampled_from(RemarkLevel), _text, _text, _text), max_size=3).map(tuple),
    _time,
    _text,
)


@settings(max_examples=100, deadline=None)
@given(_plans)
def test_every_plan_comes_back(plan: MigrationPlan) -> None:
    text = render_plan(plan, ("do `this`\nnow",))
    assert parsed(text) == plan
    assert max(map(len, text.splitlines()[:5])) < 121


@settings(max_examples=30, deadline=None)
@given(_plans)
def test_without_the_fast_parser_it_is_the_same(plan: MigrationPlan) -> None:
    fast, document.LOADER = document.LOADER, yaml.SafeLoader
    try:
        assert parsed(render_plan(plan)) == plan
    finally:
        document.LOADER = fast


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_damage_makes_it_fail_otherwise_than_with_a_message(data: st.DataObject) -> None:
    lines = EXAMPLE_TEXT.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        new = data.draw(
            st.sampled_from(
                ["", "x", "- \n", "  a: b\n", "&a *a\n", "{", "]", "\t\n", "\0", "!!int x\n", "? ", "'", "<<: 1\n"]
            )
            | st.sampled_from(lines)
        )
        lines[at] = new if data.draw(st.booleans()) else lines[at].rstrip("\n") + new
    try:
        parsed("".join(lines))
    except StantoolsError as error:
        assert error.message.startswith("plan.yaml")
        assert error.remedy


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text(st.sampled_from("[]{}:-*&!|>'\"\n ab#?,"), max_size=60).map(str.encode))
def test_anything_else_is_refused_with_a_message(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        document.parse(data, FILE, "a plan").take("no such key")
    assert caught.value.message.startswith("plan.yaml")


# --- what it looks like

EXAMPLE = MigrationPlan(
    SourceRef("/data/stan", crc_poly=3988292384),
    TargetRef(TargetKind.SERVER, ("nats://js.example:4222",), (2, 10, 26)),
    LoadMethod.ARCHIVE,
    (
        StreamPlan(
            "orders_new",
            ("orders.new",),
            (ChannelPart("orders.new", "orders.new", 90, 1, 100, 64 << 20, 4, 10**18, 10**18 + 5, "aa-bb"),),
            {"storage": "file", "num_replicas": 3, "max_age": 259200 * SECOND, "max_bytes": 1 << 30, "max_msgs": -1},
            consumers=(
                ConsumerPlan(
                    "d",
                    channel="orders.new",
                    durable="d",
                    client="c1",
                    settings=CONSUMER_DEFAULTS | {"ack_wait": 30 * SECOND, "max_ack_pending": 16},
                    position=ConsumerProgress.of(7, [1, 3, 5, 6, 7]),
                ),
            ),
            created_ns=10**18,
        ),
        StreamPlan(
            "stock",
            ("stock",),
            (ChannelPart("stock", "stock", fingerprint="aa-cc"),),
            {"storage": "file", "num_replicas": 3, "max_age": 0, "max_bytes": -1, "max_msgs": -1},
            created_ns=NOW,
        ),
    ),
    (OmittedPart("subscription", "stock", "it is not durable", 2),),
    (
        Remark(RemarkLevel.WARNING, "orders.new", "4 messages are damaged\nor gone", "see there"),
        Remark(RemarkLevel.INFO, "", "odd"),
    ),
    NOW,
)
EXAMPLE_TEXT = render_plan(EXAMPLE, ("stantools migrate apply plan.yaml",))


def test_the_example() -> None:
    assert again(EXAMPLE) == EXAMPLE
    lines = EXAMPLE_TEXT.splitlines()
    for line in (
        "# 2 channels into 2 streams: 90 messages, 64.0 MB of payload, 1 consumer.",
        "# ALREADY MISSING: 4 messages, damaged or lost in the store.",
        "# Not migrated (see `left_out` at the end): 2 subscriptions.",
        r"#   - orders.new: 4 messages are damaged\nor gone (see there)",
        "#     stantools migrate apply plan.yaml",
        "  replicas: 3",
        "- stream: orders_new",
        "  # 90 messages, 64.0 MB, sequences 1 to 100, 10 missing; 4 DAMAGED OR LOST",
        "  max_age: 3d",
        "  max_bytes: 1GB",
        "    delivered: 7  # of 100; all up to 0 acknowledged, 5 pending",
        "    pending: 1, 3, 5-7",
        "    ack_wait: 30s",
    ):
        assert line in lines
    assert max(map(len, lines)) <= 120
    # Other readers of YAML understand it too.
    loaded = yaml.safe_load(EXAMPLE_TEXT)
    assert loaded["streams"][0]["consumers"][0]["delivered"] == 7
    assert loaded["defaults"]["max_msgs"] == "unlimited"


def test_problems_are_shown_on_top() -> None:
    broken = replace(EXAMPLE, streams=(EXAMPLE.streams[0], replace(EXAMPLE.streams[1], name="a.b")))
    text = render_plan(broken)
    assert "# PROBLEMS that must be settled before it can be applied:\n#   - a.b: 'a.b' cannot be the name" in text


def test_many_warnings_are_cut_short() -> None:
    notes = tuple(Remark(RemarkLevel.WARNING, f"c{n}", "odd") for n in range(30))
    assert "\n#   … and 10 more\n" in render_plan(replace(EXAMPLE, notes=notes))


def test_long_lists_of_pending_messages_are_wrapped() -> None:
    (one,) = EXAMPLE.streams[0].consumers
    waiting = replace(one, position=ConsumerProgress.of(90, range(2, 91, 2)))
    plan = replace(EXAMPLE, streams=(replace(EXAMPLE.streams[0], consumers=(waiting,)),))
    text = render_plan(plan)
    assert max(map(len, text.splitlines())) <= 120
    assert parsed(text) == plan


def test_edits_are_taken() -> None:
    rows: list[tuple[str, str, Any]] = [
        ("- stream: orders_new", "- stream: ORDERS", lambda p: p.streams[0].config["name"] == "ORDERS"),
        ("    subject: orders.new", "    subject: new", lambda p: p.streams[0].subjects == ("new",)),
        ("  replicas: 3", "  replicas: 1", lambda p: {s.settings["num_replicas"] for s in p.streams} == {1}),
        ("  max_age: 3d", "  max_age: 1h30m", lambda p: p.streams[0].settings["max_age"] == 5400 * SECOND),
        ("  max_age: 3d", "  max_age: unlimited", lambda p: p.streams[0].settings["max_age"] == 0),
        ("  max_bytes: 1GB", "  max_bytes: 64MB", lambda p: p.streams[0].settings["max_bytes"] == 64 << 20),
        ("way: archive", "way: publish", lambda p: p.way is LoadMethod.PUBLISH),
        (
            "    pending: 1, 3, 5-7",
            "    pending: none",
            lambda p: p.streams[0].consumers[0].position == ConsumerProgress(7, 7),
        ),
        (
            "- consumer: d",
            "- consumer: e",
            lambda p: p.streams[0].consumers[0].config["durable_name"] == "e",
        ),
        ("  origin_headers: no", "  origin_headers: yes", lambda p: all(s.origin_headers for s in p.streams)),
    ]
    for before, after, check in rows:
        assert EXAMPLE_TEXT.count(before + "\n") + EXAMPLE_TEXT.count(before + "  #") == 1, (before, after, check)
        edited = parsed(EXAMPLE_TEXT.replace(before, after))
        assert check(edited), (before, after, check)
        assert not check(EXAMPLE), (before, after, check)
        assert edited.digest != EXAMPLE.digest, (before, after, check)


def test_moving_a_channel_to_another_stream_numbers_it_anew() -> None:
    plan = parsed(
        """
plan: 1
source: {store: /s}
target: {kind: server}
way: archive
streams:
- stream: S
  channels:
  - {channel: a, subject: a, found: {messages: 1, first: 1, last: 1, bytes: 1, lost: 0, from: 0, to: 0, fingerprint: x}}
  - {channel: b, subject: b, found: {messages: 1, first: 1, last: 1, bytes: 1, lost: 0, from: 0, to: 0, fingerprint: x}}
  consumers:
  - {consumer: d, channel: b, kind: pull, delivered: 1, ack_wait: 1s}
complete: yes
""",
    )
    (one,) = plan.streams
    assert one.renumbered
    assert one.subjects == ("a", "b")
    assert one.consumers[0].settings == CONSUMER_DEFAULTS | {"ack_wait": SECOND, "filter_subject": "b"}


def test_a_plan_that_was_cut_short() -> None:
    """Wherever it is cut: what is left may look whole."""
    for lines in range(1, 12):
        whole = ["plan: 1", "source: {store: /s}", "target: {kind: server}", "way: archive", "streams:"]
        whole += [f"- {{stream: S{number}, channels: []}}" for number in range(6)]
        with pytest.raises(UsageError):
            parsed("\n".join(whole[:lines]) + "\n")
            pytest.fail(f"accepted: {lines!r}")


def test_wrong_edits_are_told_with_their_line() -> None:
    rows: list[tuple[str, str, str]] = [
        ("plan: 1", "plan: 2", "`plan` is '2', expected 1"),
        ("plan: 1\n", "", "`plan: 1` is missing: this is not a migration plan"),
        ("- stream: orders_new", "- stream: orders.new", "'orders.new' cannot be the name of a stream"),
        ("- stream: orders_new", "- strem: orders_new", "`stream` is missing"),
        ("    subject: orders.new", "    subject: orders..new", "a part between two dots is empty"),
        ("  replicas: 3", "  replicas: 6", "`replicas` is '6', expected a number from 1 to 5"),
        ("  replicas: 3", "  replicas: 0", "`replicas` is '0', expected a number from 1 to 5"),
        ("  replicas: 3", "  replicas: [3]", "`replicas` is a list, expected a text"),
        ("  replicas: 3", "  replicas:", "`replicas` is empty, expected a text"),
        ("  replicas: 3", "  repicas: 3", "`repicas` is not known here"),
        ("  max_age: 3d", "  max_age: 3 days", "`max_age` is '3 days', expected a duration such as 30s"),
        ("  max_age: 3d", "  max_age: 3d\n  max_age: 4d", "`max_age` occurs twice"),
        ("  max_bytes: 1GB", "  max_bytes: big", "expected a number of bytes such as 4096, 64MB or 1GB"),
        ("  storage: file", "  storage: disk", "`storage` is 'disk', expected file or memory"),
        ("  storage: file", "  retention: workqueue", "retention 'workqueue' would remove messages"),
        ("way: archive", "way: copy", "`way` is 'copy', expected archive or publish"),
        ("    kind: pull", "    kind: both", "expected pull or push"),
        ("    delivered: 7", "    delivered: -7", "`delivered` is '-7', expected a number"),
        ("    delivered: 7", "    delivered: 6", "7 is pending, but `delivered` is only 6"),
        ("    pending: 1, 3, 5-7", "    pending: 1, x", "not 'x'"),
        ("    ack_wait: 30s", "    ack_wait: 0s", "expected at least 1ns"),
        ("    ack_wait: 30s", "    ack_policy: none", "expected explicit"),
        ("  origin_headers: no", "  origin_headers: perhaps", "expected yes or no"),
        ("nats://js.example:4222", "nats://u:pw@js.example:4222", "a plan holds no user, password or token"),
        ("  version: 2.10.26", "  version: two", "expected a version such as 2.10.26"),
        ("  kind: server", "  kind: cloud", "expected server or backup or store"),
        ("left_out:", "leftout:", "`leftout` is not known here"),
        ("\nstreams:", "\nstreams: all\nx:", "`streams` is 'all', expected a list"),
        ("- stream: orders_new", "- stream: &x orders_new\n  description: *x", "`*` refers to another place"),
        ("way: archive", "way: archive: 5", "not YAML"),
        ("way: archive", "way: 'archive", "not YAML"),
        ("way: archive", "way: !!binary '*'", "expected base64"),
    ]
    for before, after, said in rows:
        assert before in EXAMPLE_TEXT, (before, after, said)
        with pytest.raises(UsageError) as caught:
            parsed(EXAMPLE_TEXT.replace(before, after, 1))
            pytest.fail(f"accepted: {(before, after, said)!r}")
        message = caught.value.message
        assert message.startswith("plan.yaml, line "), (before, after, said)
        assert said in message, (before, after, said)
        assert caught.value.remedy, (before, after, said)
        if "not YAML" not in said and "missing" not in said:
            place = EXAMPLE_TEXT[: EXAMPLE_TEXT.index(before)].count("\n") + 1
            told = int(message.removeprefix("plan.yaml, line ").partition(":")[0])
            assert place <= told <= place + after.count("\n") + 1, (before, after, said)


def test_a_typo_gets_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        parsed(EXAMPLE_TEXT.replace("  max_age: 3d", "  max_gae: 3d"))
    assert caught.value.remedy == "did you mean `max_age`?"


# --- files


def test_a_plan_of_version_0_1_0_is_read_and_written_as_ever() -> None:
    """With all kinds of lines. The digest identifies the journal of a begun migration."""
    text = (Path(__file__).parent / "plan-0.1.0.yaml").read_text()
    plan = parsed(text)
    assert plan.digest == "8b7f6657ba5cb3f681a9e17a40d1d75c"
    assert (plan.broker, plan.source.nodes) == ("stan-1", ("n1=/data/n1", "/data/n 2"))
    assert plan.streams[0].consumers[0].position.pending == tuple(range(2, 91, 2))
    written = render_plan(plan, ("stantools migrate apply plan.yaml",))
    assert written[written.index("\nplan: 1") :] == text[text.index("\nplan: 1") :]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "a plan.yaml"
    write_plan(file, EXAMPLE)
    assert read_plan(file) == EXAMPLE
    assert f"#     stantools migrate apply '{file}'" in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a plan.yaml"]
    with pytest.raises(StoreUnwritableError, match="does not exist"):
        write_plan(tmp_path / "none" / "p", EXAMPLE)
    with pytest.raises(StoreUnreadableError, match="no such file"):
        read_plan(tmp_path / "other")
    with pytest.raises(StoreUnreadableError, match="directory"):
        read_plan(tmp_path)


def test_an_absurdly_nested_file(tmp_path: Path) -> None:
    for text in ("[" * 100_000, "- " * 100_000, '{"a":' * 100_000):
        with pytest.raises(UsageError) as caught:
            parsed(text)
        assert "levels deep" in caught.value.message


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_BYTES", 100)
    write_plan(tmp_path / "p", EXAMPLE)
    with pytest.raises(UsageError, match="larger than"):
        read_plan(tmp_path / "p")


@pytest.mark.parametrize(("text", "said"), [("", "empty, expected"), ("\xff", "line 1"), ("- a\n", "expected a group")])
def test_other_files(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=said):
        read_plan(tmp_path / "p")


def test_the_plan_of_a_store_comes_back(tmp_path: Path) -> None:
    channels: dict[str | bytes, Channel] = {
        "orders.new": Channel(range(1, 200), [durable(1, "d", sent=150, pending=range(1, 150, 2))]),
        "orders.old": Channel([4, 5], [queue(2, "q:g", sent=4, pending=[4]), sub(1, client_id="c1")]),
        b"odd\xff\n \x85": Channel([1]),
    }
    store = write_store(tmp_path / "s", channels)
    for options in (PlanOptions(), PlanOptions(overrides=(mapping_override("orders.*=O"),), via="publish")):
        plan = make_plan(opened(store), options, (2, 12, 8), now_ns=NOW)
        assert again(plan) == plan


@pytest.mark.parametrize("case", cases_by_kind())
def test_plans_of_golden_stores_come_back(golden: Path, case: str) -> None:
    from stantools.errors import StoreUnreadableError
    from stantools.migration.source import open_source
    from stantools.store.directory import open_datastore

    try:
        source = open_source(open_datastore(golden / case / "datastore", CRC))
    except StoreUnreadableError:
        pytest.skip("its files are not readable")
    plan = make_plan(source, PlanOptions(), now_ns=NOW)
    assert again(plan) == plan
    assert plan.messages == sum(channel.count for channel in source.channels)
