"""The channels that a stream is compared with by default, and the expected state of its consumers."""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.migration.plan.consumers import plan_consumers, sort_subscriptions, stream_position
from stantools.migration.plan.migration_plan import DESCRIPTION, METADATA_CHANNEL, ConsumerKind, ConsumerPlan
from stantools.migration.proof.stream_proof import ExpectedStream
from stantools.migration.source import ChannelSource, SourceOptions, StoreSource
from stantools.migration.stream_source import stream_source
from stantools.nats.jetstream import JetStream
from stantools.nats.stream_names import stream_name
from stantools.streamfiles.headers import SEQUENCE

_GENERATION = re.compile(r"(.+)\.generation-\d+")


def channels_of(info: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Returns the channels that a stream was made from; empty if nothing fits.

    In this order: the channels in its metadata or description; the channel whose name gives the stream's name; the
    channels whose names, or names with a prefix, are its subjects. `info` is the answer of `STREAM.INFO`.
    """
    config = info["config"]
    known = {_shown(name): name for name in names}
    metadata = (config.get("metadata") or {}).get(METADATA_CHANNEL)
    description = str(config.get("description") or "")
    said = [metadata, description.removeprefix(DESCRIPTION) if description.startswith(DESCRIPTION) else None]
    for name in said:
        if name is None:
            continue
        if name in known:
            return [known[name]]
        older = _GENERATION.fullmatch(name)
        if older and older[1] in known:
            return [os.fsdecode(name.encode())]
    named = [name for name in names if stream_name(name) == config["name"]]
    if named:
        return named
    subjects = [str(subject) for subject in config.get("subjects") or []]
    return [name for name in names if _subject(subjects, name)]


async def match_stream(
    js: JetStream, info: Mapping[str, Any], store: StoreSource, channels: Sequence[str]
) -> ExpectedStream:
    """Returns the expected content of a stream made from these channels; several channels were renumbered."""
    config, parts = info["config"], []
    stream = str(config["name"])
    subjects = [str(subject) for subject in config.get("subjects") or []]
    for name in sorted(channels, key=os.fsencode):
        channel = store.channel(name)
        if channel is None:
            raise UsageError(f"the store has no channel {name}", "see: stantools info STORE")
        subject = _subject(subjects, name)
        if not subject:
            subject = subjects[0] if len(channels) == len(subjects) == 1 and _literal(subjects[0]) else name
        parts.append((channel, os.fsencode(subject)))
    source = stream_source(parts)
    several = len(parts) > 1
    consumers = _consumers(stream, [(channel, subject if several else b"") for channel, subject in parts])
    positions = [(each, stream_position(each, source)) for each in consumers]
    state = info["state"]
    message = await js.message(info["config"]["name"], {"seq": state["first_seq"]}) if state["messages"] else None
    has_origin = f"\r\n{SEQUENCE}: ".encode() in base64.b64decode((message or {}).get("hdrs", ""))
    return ExpectedStream(stream, source, has_origin, True, positions)


def _consumers(stream: str, parts: Sequence[tuple[ChannelSource, bytes]]) -> list[ConsumerPlan]:
    durables, filters = [], []
    for channel, subject in parts:
        sorted_out = sort_subscriptions(channel.name, channel.subscriptions, channel.sequences, channel.last)
        durables += [(durable, ConsumerKind.PULL) for durable in sorted_out.durables]
        filters += [os.fsdecode(subject)] * len(sorted_out.durables)
    return plan_consumers(durables, stream, filters, "")


def _subject(subjects: Sequence[str], channel: str) -> str:
    """Returns the subject of a stream that is a channel's name, or ends in it after a prefix; "" if there is none."""
    name = _shown(channel)
    if name in subjects:
        return channel
    return next((s for s in subjects if _literal(s) and s.endswith(f".{name}")), "")


def _literal(subject: str) -> bool:
    return not any(token in ("*", ">") for token in subject.split("."))


def _shown(name: str) -> str:
    """Returns a name as text for json, in the form of a plan."""
    return os.fsencode(name).decode("utf-8", "replace")


async def stream_info(js: JetStream, stream: str) -> dict[str, Any]:
    """Returns the stream's STREAM.INFO; if it does not exist, the error names the existing streams."""
    info = await js.stream_info(stream)
    if info is not None:
        return info
    there = await js.stream_names()
    have = difflib.get_close_matches(stream, there, n=3) or there[:5]
    raise UsageError(
        f"{js.connection.url} has no stream {escape(stream)}",
        f"its streams: {', '.join(map(escape, have))}" if have else "it has no streams in this account",
    )


def channels_for(info: Mapping[str, Any], names: Sequence[str], store: Path) -> list[str]:
    """Returns the channels that a stream was made from, or raises UsageError naming `store` if they are not clear."""
    found = channels_of(info, names)
    if not found:
        raise UsageError(
            f"it is not clear which channel of {escape(str(store))} stream {escape(info['config']['name'])} "
            "was made from",
            "name it with --channel",
        )
    return found


def source_options_of(channels: Sequence[str], workers: int) -> SourceOptions:
    """Returns options for reading some channels; an older generation lies in the channel's own directory."""
    found = (_GENERATION.fullmatch(name) for name in channels)
    patterns = tuple(older[1] if older else name for older, name in zip(found, channels, strict=True))
    return SourceOptions(patterns, workers=workers)
