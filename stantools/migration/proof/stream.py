"""The proof that a stream is what was planned: its state, every message in it, its consumers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.plan.model import ConsumerPlan, Position
from stantools.migration.proof.compare import Comparison
from stantools.migration.proof.consumers import check_consumers
from stantools.migration.proof.readback import Readback
from stantools.migration.stream_source import StreamSource
from stantools.migration.target.jetstream import JetStream
from stantools.progress import Progress

#: From this version on servers count every missing sequence, however the gap was made
#: (jetstream-migration.md section 5.3).
_COUNTS_GAPS = (2, 11, 0)


@dataclass
class Proof:
    """What a comparison came to.

    Attributes:
        findings: What differs; empty if nothing does.
        messages: Messages that both sides have.
        bytes: Payload bytes that were read from the stream.
        seconds: How long it took.
    """

    findings: list[Finding] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Nothing differs."""
        return not self.findings


async def prove_stream(
    js: JetStream,
    stream_name: str,
    source: StreamSource,
    *,
    origin: bool,
    via_publish: bool,
    consumers: Sequence[tuple[ConsumerPlan, Position]] = (),
    messages: bool = True,
    progress: Progress | None = None,
) -> Proof:
    """Compares a stream on a server with its source.

    Args:
        js: The server.
        stream_name: The stream.
        source: What it should hold.
        origin: Its messages carry headers with channel, sequence and time.
        via_publish: Messages were published, all or some: such a message has a timestamp of its own.
        consumers: Its consumers, with positions in sequences of the stream.
        messages: Compare the messages themselves, not only what the server tells of the stream.
        progress: Told the number of messages as they are compared.

    Raises:
        TargetError: The server cannot be asked, or does not deliver.
        StoreUnreadableError: As from the source.
    """
    started = time.monotonic()
    proof = Proof()
    info = await js.stream_info(stream_name)
    if info is None:
        proof.findings.append(finding("stream-missing", f"there is no stream {stream_name}"))
        return proof
    channel = source.parts[0][0].name if len(source.parts) == 1 else None
    state = info["state"]
    wrong = "; ".join(_state_differences(source, state, js.connection.version))
    if wrong:
        proof.findings.append(finding("stream-state", f"stream {stream_name}: {wrong}", channel=channel))
    proof.findings += await check_consumers(js, stream_name, consumers, source, via_publish=via_publish)
    if not messages:
        proof.seconds = time.monotonic() - started
        return proof
    comparison = Comparison(source.read(), stream_name, origin=origin, published=via_publish, channel=channel)
    async with aclosing(Readback(js, stream_name, state).batches()) as batches:
        async for batch in batches:
            comparison.add(batch)
            if progress:
                progress(len(batch))
    proof.findings += comparison.finish()
    proof.messages, proof.bytes = comparison.messages, comparison.bytes
    proof.seconds = time.monotonic() - started
    return proof


def _state_differences(source: StreamSource, state: Mapping[str, Any], version: tuple[int, int, int]) -> Iterator[str]:
    if state["messages"] != source.count:
        yield f"it has {state['messages']} messages instead of {source.count}"
    # Servers do not agree about the first sequence of an empty stream.
    if source.count and state["messages"] and state["first_seq"] != source.first:
        yield f"its first sequence is {state['first_seq']} instead of {source.first}"
    if state["last_seq"] != source.last:
        yield f"its last sequence is {state['last_seq']} instead of {source.last}"
    if version >= _COUNTS_GAPS and source.count and state["messages"] == source.count:
        missing = source.last - source.first + 1 - source.count
        if state.get("num_deleted", 0) != missing:
            yield f"it counts {state.get('num_deleted', 0)} missing sequences instead of {missing}"
