"""A plan and its store: what identifies a channel's content, and what has changed since."""

from __future__ import annotations

import hashlib
import os

from stantools.migration.plan.model import ChannelPart, Level, Note, Plan
from stantools.migration.source import ChannelSource, StoreSource

_DIGITS = 16


def channel_part(channel: ChannelSource, subject: str) -> ChannelPart:
    """Returns what a plan says about a channel.

    Raises:
        StoreUnreadableError: The store cannot be read any more.
    """
    return ChannelPart(
        channel.name,
        subject,
        channel.count,
        channel.first,
        channel.last,
        channel.payload_bytes,
        channel.lost.count(),
        channel.first_timestamp,
        channel.last_timestamp,
        fingerprint(channel),
    )


def fingerprint(channel: ChannelSource) -> str:
    """Returns what identifies the messages of a channel and, after a `-`, its subscriptions.

    Payloads are not read: a message that was altered without a trace in the store's own records is not noticed.
    """
    messages = hashlib.sha256(os.fsencode(channel.name))
    facts = (channel.last, channel.first_timestamp, channel.last_timestamp, channel.payload_bytes)
    messages.update(repr((channel.sequences.pairs(), facts)).encode())
    subscribers = hashlib.sha256()
    for subscription in sorted(channel.subscriptions, key=lambda each: each.state.id):
        subscribers.update(subscription.state.SerializeToString(deterministic=True))
        subscribers.update(repr(sorted(subscription.pending)).encode())
    return f"{messages.hexdigest()[:_DIGITS]}-{subscribers.hexdigest()[:_DIGITS]}"


def find_changes(plan: Plan, source: StoreSource) -> list[Note]:
    """Tells in what a store is no longer as it was when the plan was made.

    Returns:
        Problems, for what is in the plan and differs; information, for channels that the plan does not know.

    Raises:
        StoreUnreadableError: The store cannot be read any more.
    """
    have = {channel.name: channel for channel in source.channels}
    known = set[str]()
    notes = []
    for stream in plan.streams:
        for part in stream.parts:
            known.add(part.channel)
            channel = have.get(part.channel)
            text = _difference(part, channel_part(channel, part.subject)) if channel else "it is no longer in the store"
            if text:
                notes.append(Note(Level.PROBLEM, part.channel, text, "plan again: the plan is for what the store was"))
    known.update(left.channel for left in plan.left_out if left.what == "channel")
    for name in have:
        if name not in known:
            text = "the channel is in the store and not in the plan: it does not go along"
            notes.append(Note(Level.INFO, name, text, "plan again if it should"))
    return notes


def _difference(then: ChannelPart, now: ChannelPart) -> str:
    if then == now:
        return ""
    parts = [
        f"{name} {getattr(then, name)} became {getattr(now, name)}"
        for name in ("messages", "first", "last", "bytes", "lost")
        if getattr(then, name) != getattr(now, name)
    ]
    was, _, subscribers = then.fingerprint.partition("-")
    if not parts and was != now.fingerprint.partition("-")[0]:
        parts.append("its messages are other ones")
    if subscribers != now.fingerprint.partition("-")[2]:
        parts.append("its subscriptions are in another state")
    return "the channel has changed since the plan was made: " + ", ".join(parts or ["its times"])
