"""The tables of streams and consumers."""

from __future__ import annotations

from collections.abc import Sequence

from stantools.notation import format_size
from tui.cells import Cell, name_text, number
from tui.live.streamfacts import Consumer
from tui.live.streams import WatchedStream
from tui.screens.livecells import STATES, rate_text, spark, state_cell, zero
from tui.screens.livetable import Field, LiveRows
from tui.widgets.rowtable import Column


def subjects_text(subjects: Sequence[str]) -> str:
    """Writes subjects one behind the other."""
    return ", ".join(map(name_text, subjects))


def stream_rows() -> LiveRows[WatchedStream]:
    """Returns the table of streams."""
    fields: Sequence[Field[WatchedStream]] = (
        Field(
            Column("name", "stream", 14, grows=True),
            lambda s: name_text(s.facts.name),
            lambda s: s.facts.name.casefold(),
        ),
        Field(Column("subjects", "subjects", 14, grows=True), lambda s: subjects_text(s.facts.subjects), None, True),
        Field(
            Column("messages", "messages", 10, right=True),
            lambda s: number(s.facts.messages),
            lambda s: -s.facts.messages,
        ),
        Field(Column("size", "size", 9, right=True), lambda s: format_size(s.facts.bytes), lambda s: -s.facts.bytes),
        Field(Column("first", "first", 8, right=True), lambda s: str(s.facts.first), lambda s: s.facts.first),
        Field(Column("last", "last", 8, right=True), lambda s: str(s.facts.last), lambda s: -s.facts.last),
        Field(Column("deleted", "deleted", 7, right=True), lambda s: zero(s.facts.deleted), lambda s: -s.facts.deleted),
        Field(
            Column("rate", "msg/s", 6, right=True), lambda s: rate_text(s.meter.rate), lambda s: -(s.meter.rate or 0.0)
        ),
        Field(Column("spark", "", 12), lambda s: spark(s.meter, 12), None, True),
        Field(Column("storage", "store", 6), lambda s: name_text(s.facts.storage), lambda s: s.facts.storage, True),
        Field(
            Column("replicas", "R", 2, right=True), lambda s: str(s.facts.replicas), lambda s: -s.facts.replicas, True
        ),
        Field(Column("subs", "cons", 5, right=True), lambda s: zero(s.facts.consumers), lambda s: -s.facts.consumers),
    )
    return LiveRows(fields, lambda s: " ".join((s.facts.name, *s.facts.subjects)), lambda s: s.facts.name, order="name")


def _kind(consumer: Consumer) -> Cell:
    return ("durable" if consumer.durable else "ephemeral") + (" push" if consumer.push else "")


def consumer_rows() -> LiveRows[Consumer]:
    """Returns the table of consumers."""
    fields: Sequence[Field[Consumer]] = (
        Field(Column("state", " ", 1), lambda c: state_cell(c.state), lambda c: (STATES[c.state][2], c.name)),
        Field(Column("name", "consumer", 12, grows=True), lambda c: name_text(c.name), lambda c: c.name.casefold()),
        Field(Column("kind", "kind", 14), _kind, None, True),
        Field(Column("filter", "only", 10, grows=True), lambda c: subjects_text(c.filters), None, True),
        Field(Column("delivered", "delivered", 9, right=True), lambda c: str(c.delivered), lambda c: -c.delivered),
        Field(Column("floor", "ack floor", 9, right=True), lambda c: str(c.ack_floor), lambda c: c.ack_floor),
        Field(Column("pending", "pending", 8, right=True), lambda c: zero(c.pending, "warn"), lambda c: -c.pending),
        Field(Column("acks", "ack pend", 8, right=True), lambda c: zero(c.ack_pending), lambda c: -c.ack_pending),
        Field(Column("again", "redeliv", 7, right=True), lambda c: zero(c.redelivered), lambda c: -c.redelivered),
        Field(Column("waiting", "waiting", 7, right=True), lambda c: zero(c.waiting), lambda c: -c.waiting),
        Field(Column("doing", "", 7), _doing, None),
    )
    return LiveRows(fields, lambda c: f"{c.name} {' '.join(c.filters)}", lambda c: c.name, order="name")


def _doing(consumer: Consumer) -> Cell:
    return consumer.state, STATES[consumer.state][1]
