"""A stream filled by publishing, exact except for message times (jetstream-migration.md section 13).

The stream itself is the only record of progress: its last sequence determines the next message, after an
interruption of this process, the end of another one, or a restart of the server. The same call can be repeated any
number of times, and does nothing once all is done.

1. Create it without limits, with the right sequence for its first message.
2. Publish every message, and a filler for every sequence missing in the source. Delete the fillers.
3. Make the consumers (see `consumers`).
4. After a pause in which the server writes all that to disk, check it, and set the final configurations of consumers
   and stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish.consumers import ConsumerPosition, StreamConsumers, WantedConsumer
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.resume import check_fillers
from stantools.migration.publish.stream_fill import StreamFill, probe
from stantools.migration.tasks import Retry

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.messages import Messages

_DEFAULTS: Final = PublishOptions()
#: seconds in which servers write acknowledged data to disk (seen: a tenth)
SETTLING = 0.3


@dataclass(frozen=True)
class PublishResult:
    """The final content of a stream, and the work done for it."""

    state: dict[str, Any]  #: the stream's state reported by the server
    messages: int  #: messages stored by this call
    found: int  #: messages that were there before
    fillers: int  #: fillers stored and deleted by this call
    consumers: list[str] = field(default_factory=list)  #: names of the consumers made by this call
    #: attempts after a broken connection or a restarted server
    interruptions: int = 0
    seconds: float = 0.0


async def publish_stream(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    source: Messages,
    consumers: Sequence[tuple[WantedConsumer, ConsumerPosition]] = (),
    *,
    options: PublishOptions = _DEFAULTS,
    progress: Callable[[int], None] | None = None,
    resume: bool = False,
) -> PublishResult:
    """Fills a stream with the messages of a source, by publishing.

    Several streams may be filled over one connection at once. `consumers` have positions in sequences of the stream.
    `progress` gets the number of stored messages, existing ones included; a negative number for messages that a
    server has lost and that are stored again. With `resume` the stream may exist: its messages must be a beginning
    of the source.

    Raises RefusedError if the stream exists, holds messages that are not in the source (`NotOursError`) or needs too
    many fillers; UsageError for a configuration that cannot be filled exactly; PermissionDeniedError, if possible
    before the stream is created. After a NatsError the same call with `resume` continues.
    """
    began = time.monotonic()
    stream_fill = StreamFill(js, name, config, source, options, progress)
    check_fillers(name, stream_fill.missing_count, options.filler_limit)
    there = await js.stream_info(name)
    if there is not None and not resume:
        raise RefusedError(
            f"stream {name} already exists", "choose another name, or remove it; or resume if an earlier run made it"
        )
    if there is None:
        await probe(js, name, stream_fill, consumers=bool(consumers))
    retry = Retry(js.connection, options.patience)
    makers = StreamConsumers(js, name, source, consumers)
    try:
        await retry.repeat(stream_fill.fill, lambda: stream_fill.reported)
        state = await retry.repeat(partial(_complete, stream_fill, makers))
    except StantoolsError as problem:
        await stream_fill.explain(problem)
        raise
    finally:
        stream_fill.loader.close()
    seconds = time.monotonic() - began
    done = stream_fill.loader
    return PublishResult(
        state, done.messages, stream_fill.found, done.filled, makers.made, retry.interruptions, seconds
    )


async def _complete(stream_fill: StreamFill, makers: StreamConsumers) -> dict[str, Any]:
    """Makes the consumers of a filled stream, configures all, and returns the stream's state."""
    # already filled, unless a server was killed since
    await stream_fill.fill()
    if await makers.bring() or stream_fill.unsettled:
        await asyncio.sleep(SETTLING)
        await stream_fill.fill()
    await makers.finish()
    return await stream_fill.finish()
