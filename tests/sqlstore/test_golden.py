"""Every golden SQL store: rows, recovered state, forecast, and a file store of the intact messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.forecast import ServerOptions
from stantools.inspection.sql_inspection import forecast_sql, verify_sql
from stantools.inspection.verify import verify
from stantools.sources.door import open_source
from stantools.sqlstore.message_scan import ChannelRows, SequenceSet
from stantools.sqlstore.sql_recovery import SqlStart, SqlState, SqlSubscription, recover
from stantools.store.ranges import Ranges
from tests.sqlstore.cases import each_case, expected, limits, opened, read, with_arguments

_SUBSCRIPTION = {
    **{"ID": "id", "ClientID": "client_id", "QGroup": "q_group", "Inbox": "inbox", "AckInbox": "ack_inbox"},
    **{"MaxInFlight": "max_in_flight", "AckWaitInSecs": "ack_wait_in_secs", "DurableName": "durable_name"},
    **{"LastSent": "last_sent", "IsDurable": "is_durable", "IsClosed": "is_closed"},
}
_FAULTS = {
    **{"undecodable": "undecodable", "sequence_differs": "sequence_differs", "null_column": "null"},
    **{"timestamp_differs": "timestamp_differs", "size_differs": "size_differs"},
}


def sequences(found: SequenceSet | Ranges) -> list[int]:
    pairs = found.ranges if isinstance(found, SequenceSet) else found
    return [each for first, last in pairs for each in range(first, last + 1)]


def joined(pairs: list[list[int]]) -> list[list[int]]:
    """Returns ranges without those that a row which is there twice repeats."""
    return Ranges.of(pairs).as_json()


@each_case
def test_all_dumps_have_the_rows_of_the_database(golden_sql: Path, case: str) -> None:
    facts = expected(golden_sql, case)
    for name in facts["dumps"]:
        reader = read(golden_sql / case / name)
        assert reader.flaws == reader.missing == []
        assert reader.facts.postgres == (facts["database"]["driver"] == "postgres")
        tables, rows = reader.tables, facts["rows"]
        assert {
            **{"ServerInfo": len(tables.server), "Clients": len(tables.clients), "Channels": len(tables.channels)},
            **{"Subscriptions": len(tables.subscriptions), "SubsPending": len(tables.pending)},
            "StoreLock": len(tables.lock),
            "Messages": sum(each.rows for each in reader.scan.channels.values()),
        } == rows["row_counts"]
        channels = [{**each._asdict(), "name": each.name.decode()} for each in tables.channels]
        by_id = sorted(channels, key=lambda each: each["id"])
        assert by_id == sorted(rows.get("Channels", channels), key=lambda each: each["id"])
        names = {each.id: each.name for each in tables.channels}
        for messages in rows.get("Messages", ()):
            _same_rows(reader.scan.channels[messages["id"]], names.get(messages["id"]), messages)


def _same_rows(found: ChannelRows, name: bytes | None, facts: dict[str, Any]) -> None:
    assert (found.rows, found.first, found.last, found.size) == tuple(
        facts[each] for each in ("rows", "min_seq", "max_seq", "size_sum")
    )
    assert found.intact(name).as_json() == joined(facts["intact"])
    for member, attribute in _FAULTS.items():
        assert sequences(getattr(found, attribute)) == facts.get(member, []), member
    if name is not None:
        assert sequences(found.subject_differs(name)) == facts.get("subject_differs", [])


@each_case
def test_the_state_is_the_one_that_a_server_recovers(golden_sql: Path, case: str) -> None:
    facts = expected(golden_sql, case)
    store = opened(golden_sql / case / "dump.sql")
    opens = [(facts["options"], facts["recovery"], facts)]
    for each in facts.get("other_opens", ()):
        opens.append((with_arguments(facts["options"], each["args"]), {"ok": True}, each["recovery"]))
    for options, outcome, state in opens:
        found = recover(
            *(store.tables, store.scan),
            limits=limits(options),
            now_ns=time.time_ns(),
            caching=not options["sql_no_caching"],
            rows_of=store._rows_of,
        )
        _same_state(found, outcome, state)


def _same_state(found: SqlState, outcome: dict[str, Any], state: dict[str, Any]) -> None:
    if "error" in outcome:
        assert (found.start, found.error) == (SqlStart.REFUSED, outcome["error"])
        return
    if outcome.get("nothing_to_recover"):
        assert found.start is SqlStart.EMPTY
        return
    assert found.start is SqlStart.RECOVERED
    if "clients" in state:
        assert sorted((each.id, each.hb_inbox) for each in found.clients) == sorted(
            (each["ID"].encode(), each["HbInbox"].encode()) for each in state["clients"]
        )
    channels = {each.name.decode(): each for each in found.channels}
    assert channels.keys() == state["channels"].keys()
    for name, facts in state["channels"].items():
        channel = channels[name]
        assert (channel.first_seq, channel.last_seq, channel.count, channel.size) == tuple(
            facts[each] for each in ("first_seq", "last_seq", "count", "bytes")
        ), name
        if "readable" in facts:
            assert channel.readable.as_json() == facts["readable"]
        assert sorted(map(_subscription, channel.subscriptions), key=repr) == sorted(
            facts.get("subscriptions", ()), key=repr
        )


def _subscription(found: SqlSubscription) -> dict[str, Any]:
    fields = {name: getattr(found.state, field) for name, field in sorted(_SUBSCRIPTION.items())}
    shown = {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}
    by_row = {"pending_by_row": found.pending_by_row} if found.pending_by_row != found.pending else {}
    return {**shown, "pending": found.pending, **by_row}


@each_case
def test_the_forecast_is_what_a_server_does(golden_sql: Path, case: str) -> None:
    facts = expected(golden_sql, case)
    store = opened(golden_sql / case / "dump.sql")
    cluster = (facts.get("server_info") or {}).get("ClusterID", "test-cluster")
    forecast = forecast_sql(store, ServerOptions(limits=limits(facts["options"]), cluster_id=cluster))[0][0]
    server = facts["server_open"]
    assert forecast.starts == server["started"]
    for name, replay in server.get("replay", {}).items():
        if "ranges" in replay:  # else the client was cut off when the server ended
            assert [list(each) for each in forecast.channels[name].delivered] == replay["ranges"]
    panics = any(each.stall_error.startswith("panic") for each in forecast.channels.values())
    assert panics == (server.get("exit_code_after_replay") == 2)
    for name, channel in (facts.get("channels") or {}).items():
        lookups = forecast.channels[name].lookups
        assert lookups.readable.as_json() == channel.get("readable", [])
        assert lookups.wrong == {each["seq"]: each["got_seq"] for each in channel.get("wrong_message", ())}
        assert sequences(lookups.failing) == [each["seq"] for each in channel.get("lookup_errors", ())]
    if published := server.get("publish_to_orders"):
        hangs = not published["ok"] and published["error"].startswith("no acknowledgement")
        assert any(each.endless for each in forecast.channels.values()) == hangs


@each_case
def test_a_file_store_has_the_intact_messages(golden_sql: Path, case: str, tmp_path: Path) -> None:
    store = opened(golden_sql / case / "dump.sql")
    store.write(tmp_path)
    verdict = verify(open_source(tmp_path).store())
    assert not [each for each in verdict.findings if each.code not in ("subscription-ahead", "server-missing")
                and each.severity.value != "info"]  # fmt: skip
    found = {each.name: each.intact.as_json() for each in verdict.channels}
    verdict = verify_sql(store)
    assert verdict.seconds > store.scan.seconds > 0, "the time of reading is in it"
    wanted = {each.name: each.intact.as_json() for each in verdict.channels}
    assert found == wanted
    rows, names = expected(golden_sql, case)["rows"], {each.id: each for each in store.tables.channels}
    for messages in rows.get("Messages", ()):
        row = names.get(messages["id"])
        if row is None or not row.deleted:
            ranges = Ranges.of(found[(row.name.decode() if row else next(iter(
                store.scan.channels[messages["id"]].by_subject)).decode())])  # fmt: skip
            assert Ranges.of(messages["intact"]) - ranges == Ranges()


@pytest.mark.parametrize(
    ("case", "state", "words"),
    [
        ("m_basic", "healthy", "no message of 51 is missing; a start is harmless"),
        ("m_channel_row_gone", "damaged", "would not reach intact messages: events 1-44"),
        ("m_channel_twice", "damaged", "would not reach intact messages: events 1-30"),
        ("m_cut_data", "damaged", "4 of 82 messages are missing"),
        ("m_limits_lowered", "in danger", "remove messages by its limits: orders 1-23; orders.eu.west 1-11"),
        ("p_gap_at_limit", "damaged", "search for a missing message for ever"),
        ("p_maxseq_high", "damaged", "would not reach intact messages: events 1-44"),
        ("p_nulls", "damaged", "end with a panic"),
        ("p_server_info_gone", "in danger", "start over as if the store were empty"),
        ("p_sum_negative", "damaged", "no message of 52 is missing; the server does not start"),
    ],
)
def test_verdicts(golden_sql: Path, case: str, state: str, words: str, tmp_path: Path) -> None:
    from stantools.inspection.advice import diagnose

    facts = expected(golden_sql, case)
    store = opened(golden_sql / case / "dump.sql")
    store.write(tmp_path)
    starts = forecast_sql(store, ServerOptions(limits=limits(facts["options"])))
    found = diagnose(Path("dump.sql"), verify_sql(store), starts, place=tmp_path)
    assert found.state.value == state
    assert words in found.verdict
