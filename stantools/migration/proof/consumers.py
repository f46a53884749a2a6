"""Whether the consumers of a stream stand where the durables of the store stood.

Facts: jetstream-migration.md sections 9 and 11.

JetStream does not tell which messages are pending, only how many, and up to where nothing is. Together with where it
has delivered to, these fix the position in all cases but one: other pending messages, of the same number, behind the
same first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.plan.model import ConsumerPlan, Position
from stantools.migration.stream_source import StreamSource
from stantools.migration.target.jetstream import JetStream
from stantools.notation import counted
from stantools.store.ranges import Ranges

#: What a server fills in, or the migration sets only while it works.
_NOT_COMPARED = ("name", "durable_name", "deliver_policy", "opt_start_seq", "metadata", "num_replicas")
#: Counting what is left for a consumer: older servers count sequences that are missing between two blocks as well.
_COUNTS_PENDING = (2, 10, 0)


async def check_consumers(
    js: JetStream,
    stream: str,
    consumers: Sequence[tuple[ConsumerPlan, Position]],
    source: StreamSource | None = None,
    *,
    via_publish: bool = False,
) -> list[Finding]:
    """Compares consumers with their planned positions.

    Args:
        js: The server.
        stream: The stream.
        consumers: What should be there, with positions in sequences of the stream.
        source: What the stream holds; with it the number of messages that are left is compared as well.
        via_publish: The positions were made by acknowledging: then servers show the floor when it moves next.

    Raises:
        TargetError: The server cannot be asked.
    """
    findings: list[Finding] = []
    for consumer, position in consumers:
        info = await js.consumer_info(stream, consumer.name)
        where = f"consumer {consumer.name} of stream {stream}"
        if info is None:
            findings.append(finding("consumer-missing", f"{where} is not there", channel=consumer.channel))
            continue
        left = None
        if source is not None and js.connection.version >= _COUNTS_PENDING:
            left = _left(source, consumer, position)
        wrong = "; ".join(_position_differences(position, info, left, late_floor=via_publish))
        if wrong:
            findings.append(finding("consumer-position", f"{where}: {wrong}", channel=consumer.channel))
        wrong = "; ".join(_config_differences(consumer.config, info["config"]))
        if wrong:
            findings.append(finding("consumer-config", f"{where}: {wrong}", channel=consumer.channel))
    return findings


def _position_differences(
    position: Position, info: Mapping[str, Any], left: int | None, *, late_floor: bool
) -> Iterator[str]:
    delivered, floor = int(info["delivered"]["stream_seq"]), int(info["ack_floor"]["stream_seq"])
    if delivered != position.delivered:
        yield f"has delivered up to {delivered} instead of {position.delivered}"
    if floor != position.ack_floor and not (late_floor and floor < position.ack_floor):
        yield f"everything is acknowledged up to {floor} instead of {position.ack_floor}"
    pending = int(info["num_ack_pending"])
    if pending != len(position.pending):
        yield f"{counted(pending, 'message', 'waits/wait')} for acknowledgement instead of {len(position.pending)}"
    if left is not None and int(info["num_pending"]) != left:
        yield f"{int(info['num_pending'])} messages are left to be delivered instead of {left}"


def _left(source: StreamSource, consumer: ConsumerPlan, position: Position) -> int | None:
    """Returns how many messages of its subject lie behind the consumer; None where that takes reading them."""
    if len(source.parts) > 1:
        return None
    ((channel, _),) = source.parts
    beyond = Ranges.of([(position.delivered + 1, 2**64 - 1)])
    return (channel.sequences & beyond).count()


def _config_differences(planned: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in planned.items():
        if name not in _NOT_COMPARED and found.get(name) != value and (value or found.get(name)):
            yield f"{name} is {found.get(name)!r} instead of {value!r}"
