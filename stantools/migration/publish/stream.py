"""A stream filled by publishing to it, exactly but for the time of its messages (jetstream-migration.md section 13).

There is no record of how far it is but the stream itself: its last sequence says what has to be sent next, whether this
process was interrupted, another one was killed, or the server has restarted. So the same call again goes on, any number
of times, and does nothing where everything is done.

1. Create it without limits; let its first message get the right sequence.
2. Publish every message, and a filler for every sequence that the source lacks. Delete the fillers.
3. Make the consumers (see `consumers`).
4. When the server has had the time to write all that down, and still has it: give consumers and stream the
   configurations that they should have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish.consumers import Consumer, Consumers, Standing
from stantools.migration.publish.filling import Filling, probe
from stantools.migration.publish.loader import Acks, Publishing
from stantools.migration.publish.resume import check_fillers
from stantools.migration.tasks import Retry

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.batch import Messages

_HOW: Final = Publishing()
#: Seconds in which servers write down what they have acknowledged (seen: a tenth).
SETTLING = 0.3


@dataclass(frozen=True)
class Published:
    """What a stream holds in the end, and what was done for it."""

    state: dict[str, Any]  #: the stream's state, as the server reports it
    messages: int  #: messages that this call stored
    found: int  #: messages that were there before
    fillers: int  #: fillers that this call stored and deleted
    consumers: list[str] = field(default_factory=list)  #: names of the consumers that this call made
    #: How often something had to be done again, because the connection broke or a server restarted.
    interruptions: int = 0
    seconds: float = 0.0  #: how long it took


async def publish_stream(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    source: Messages,
    consumers: Sequence[tuple[Consumer, Standing]] = (),
    *,
    how: Publishing = _HOW,
    progress: Callable[[int], None] | None = None,
    resume: bool = False,
) -> Published:
    """Makes a stream hold what a source holds, by publishing.

    Args:
        js: Where to. Several streams may be filled over it at once.
        name: The stream.
        config: Its configuration.
        source: What it should hold, with the sequences that it should have.
        consumers: Consumers to make, with their positions in sequences of the stream.
        how: How messages are published.
        progress: Called with how many more messages are stored, those found included; a negative number if the
            server has lost some and they have to be stored again.
        resume: The stream may be there already: what it holds must be a beginning of the source, and is completed.

    Raises:
        RefusedError: The stream already exists, or (`NotOursError`) holds something else than the source, or it
            would take too many fillers.
        UsageError: A stream with this configuration cannot be filled exactly.
        PermissionDeniedError: The user may not do what it takes; as far as possible that is checked before the stream
            is created.
        NatsError: The server refuses, or is gone for too long. The same call goes on from there, with `resume`.
        StantoolsError: A message does not fit into the server, or the source cannot be read.
    """
    began = time.monotonic()
    filling = Filling(js, name, config, source, how, progress)
    check_fillers(name, filling.lacking, how.filler_limit)
    there = await js.stream_info(name)
    if there is not None and not resume:
        raise RefusedError(
            f"stream {name} already exists", "choose another name, or remove it; or resume if an earlier run made it"
        )
    if there is None:
        await probe(js, name, filling, consumers=bool(consumers))
    retry = Retry(js.connection, how.patience)
    makers = Consumers(js, name, source, consumers)
    acks = Acks.open(js.connection, name)
    try:
        await retry.repeat(lambda: filling.fill(acks), lambda: filling.reported)
        state = await retry.repeat(partial(_complete, filling, makers, acks))
    except StantoolsError as problem:
        await filling.explain(problem)
        raise
    finally:
        acks.close()
    seconds = time.monotonic() - began
    done = filling.loader
    return Published(state, done.messages, filling.found, done.filled, makers.made, retry.interruptions, seconds)


async def _complete(filling: Filling, makers: Consumers, acks: Acks) -> dict[str, Any]:
    """Makes the consumers of a filled stream, and finishes all; returns the stream's state."""
    # It is filled already, unless a server was killed since.
    await filling.fill(acks)
    if await makers.bring() or filling.unsettled:
        await asyncio.sleep(SETTLING)
        await filling.fill(acks)
    await makers.finish()
    return await filling.finish()
