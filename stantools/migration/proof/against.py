"""Comparing a stream with the store that it was made from, step by step: those who show progress come in between."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.format.crc import Crc
from stantools.migration.proof.match import Match, channels_of, pattern_of
from stantools.migration.proof.stream import Proof, prove_stream
from stantools.migration.source import StoreSource, open_source
from stantools.migration.target.jetstream import JetStream
from stantools.progress import Progress
from stantools.store.directory import Datastore


async def stream_info(js: JetStream, stream: str) -> dict[str, Any]:
    """Returns a stream as the server describes it.

    Raises:
        UsageError: There is none of that name; the remedy names those that there are.
        TargetError: The server cannot be asked.
    """
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
    """Returns the channels that a stream was made from.

    Args:
        info: The stream.
        names: The channels of the store.
        store: The store's path, for the message.

    Raises:
        UsageError: It is not clear.
    """
    found = channels_of(info, names)
    if not found:
        raise UsageError(
            f"it is not clear which channel of {escape(str(store))} stream {escape(info['config']['name'])} "
            "was made from",
            "say so with --channel",
        )
    return found


def patterns_for(channels: Sequence[str]) -> list[str]:
    """Returns the patterns that select channels in their store."""
    return [pattern_of(name) for name in channels]


async def read_source(
    store: Datastore,
    crc: Crc,
    channels: Sequence[str],
    *,
    key: bytes | None,
    workers: int,
    progress: Progress | None = None,
) -> StoreSource:
    """Finds out what a store holds of some channels; in a thread, so that the connection is kept alive meanwhile.

    Args:
        store: The store.
        crc: Its CRC.
        channels: Which.
        key: The encryption key, if payloads are encrypted.
        workers: Files that are read at the same time.
        progress: Told the bytes that were read, of `store.data_size(patterns_for(channels))`.

    Raises:
        StantoolsError: It cannot be read.
    """
    return await asyncio.to_thread(
        open_source, store, crc, patterns=patterns_for(channels), key=key, workers=workers, progress=progress
    )


async def prove_match(js: JetStream, stream: str, match: Match, progress: Progress | None = None) -> Proof:
    """Compares every message of a stream and its consumers with what they should be.

    The stream is read through an ephemeral consumer that is removed again; nothing else is made on the server.

    Args:
        js: The server.
        stream: The stream.
        match: What it should be.
        progress: Told the number of messages as they are compared, of `match.source.count`.

    Raises:
        TargetError: The server cannot be asked, or does not deliver.
        StoreUnreadableError: The store cannot be read any more.
    """
    return await prove_stream(
        js,
        stream,
        match.source,
        origin=match.origin,
        via_publish=True,
        consumers=match.consumers,
        progress=progress,
    )
