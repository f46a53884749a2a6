"""Whether a backup, or a stream in the store of a stopped server, is what was planned: every message is compared.

The same as `proof` does with a running server, with the same findings; no server is needed here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.archive.consumer import ConsumerState
from stantools.migration.archive.meta import consumer_meta, stream_meta
from stantools.migration.archive.reader import Records
from stantools.migration.offlineread import Written, check_backup, check_stream_directory
from stantools.migration.prepared import PreparedStream
from stantools.migration.proof.compare import Comparison
from stantools.migration.proof.stream import Proof
from stantools.migration.watch import Unwatched, Watch
from stantools.migration.wire.assembler import Received
from stantools.migration.wire.columns import FrameColumns

#: What both kinds of columns have of a message.
_SHARED = (
    "sequence",
    "timestamp",
    "subject_start",
    "subject_size",
    "header_start",
    "header_size",
    "data_start",
    "data_size",
)
_SHOWN = 10


def prove_backup(directory: Path, stream: PreparedStream, watch: Watch | None = None) -> Proof:
    """Compares a backup with its source: messages, configuration and consumers.

    Args:
        directory: The directory with the two files.
        stream: What should be in it.
        watch: Told how many messages were compared.

    Raises:
        StoreUnreadableError: A file cannot be read; or as from the source.
    """
    proof, written = _prove(lambda take: check_backup(directory, take), stream, watch)
    if written.request:
        proof.findings += _config(f"stream {stream.name}, request", stream.plan.config, written.request["config"])
    return proof


def prove_stream_directory(directory: Path, stream: PreparedStream, watch: Watch | None = None) -> Proof:
    """Compares a stream in the store of a stopped server with its source, as `prove_backup` does with a backup."""
    if not directory.is_dir():
        detail = f"there is no stream {stream.name} in {directory.parent}"
        return Proof([finding("stream-missing", detail, channel=_channel(stream))])
    return _prove(lambda take: check_stream_directory(directory, take), stream, watch)[0]


def _prove(
    check: Callable[[Callable[[Records], None]], Written], stream: PreparedStream, watch: Watch | None
) -> tuple[Proof, Written]:
    watch, started = watch or Unwatched(), time.monotonic()
    plan, channel = stream.plan, _channel(stream)
    comparison = Comparison(
        stream.source.read(), stream.name, origin=plan.origin_headers, published=False, channel=channel
    )

    def compare(records: Records) -> None:
        received = _received(records)
        comparison.add(received)
        watch.advance(stream.name, len(received))

    written = check(compare)
    findings = list(written.findings)
    if written.stream:
        # Of a damaged one, what could not be read is missing.
        findings += comparison.finish()
        expected = json.loads(stream_meta(plan.name, plan.config, plan.created_ns))
        findings += _config(f"stream {stream.name}", expected, written.config)
    if written.whole:
        if written.state.last_seq != stream.source.last:
            detail = f"stream {stream.name} ends at sequence {written.state.last_seq} instead of {stream.source.last}"
            findings.append(finding("stream-state", detail, channel=channel))
        findings += _consumers(stream, written)
    seconds = time.monotonic() - started
    return Proof(findings, comparison.messages, comparison.bytes, seconds), written


def _channel(stream: PreparedStream) -> str | None:
    parts = stream.source.parts
    return parts[0][0].name if len(parts) == 1 else None


def _received(records: Records) -> Received:
    """The messages among some records, as if a server had delivered them."""
    live = records.columns.take(records.columns.flags == 0)
    columns = FrameColumns(len(live.sequence))
    for name in _SHARED:
        setattr(columns, name, getattr(live, name))
    return Received(records.buffer, columns)


def _config(where: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Finding]:
    """What of a configuration differs; more may have been added to it."""
    wrong = [
        f"{name} is {found.get(name)!r} instead of {value!r}"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    if wrong:
        yield finding("stream-config", f"{where}: {'; '.join(wrong)}")


def _consumers(stream: PreparedStream, written: Written) -> Iterator[Finding]:
    there = {entry.name: entry for entry in written.consumers}
    for planned in stream.entries():
        where = f"consumer {planned.name} of stream {stream.name}"
        found = there.get(planned.name)
        if found is None:
            yield finding("consumer-missing", f"{where} is not there")
            continue
        if _position(found.state) != _position(planned.state):
            detail = f"{where}: it stands at {_words(found.state)} instead of {_words(planned.state)}"
            yield finding("consumer-position", detail)
        expected = json.loads(consumer_meta(planned.name, planned.config, stream.plan.created_ns))
        wrong = [
            f"{name} is {found.config.get(name)!r} instead of {value!r}"
            for name, value in expected.items()
            if found.config.get(name) != value
        ]
        if wrong:
            yield finding("consumer-config", f"{where}: {'; '.join(wrong)}")


def _position(state: ConsumerState | None) -> object:
    """What must be equal of two positions: not when something was sent."""
    if state is None:
        return None
    pending = {sequence: number for sequence, (number, _) in state.pending.items()}
    return state.ack_floor, state.delivered, pending, dict(state.redelivered)


def _words(state: ConsumerState | None) -> str:
    if state is None:
        return "its beginning"
    pending = ", ".join(map(str, sorted(state.pending)[:_SHOWN]))
    more = f" and {len(state.pending) - _SHOWN} more" if len(state.pending) > _SHOWN else ""
    return f"{state.delivered[1]}, all acknowledged up to {state.ack_floor[1]}, pending {pending or 'nothing'}{more}"
