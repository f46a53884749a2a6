"""The limits of channels as limits of streams, and what they would remove as soon as they apply.

    streaming            a stream of one channel    a stream of several channels
    max_msgs             max_msgs                   max_msgs_per_subject, the largest
    max_bytes            max_bytes                  max_bytes, the sum
    max_age              max_age                    max_age, the largest
    max_subs, max_inactivity, max_channels          nothing of the kind

Bytes are counted differently: a stream counts its records (subject, payload and 30 bytes each, a little more with
headers), the streaming server the payload's record and 40 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stantools.migration.plan.model import UNLIMITED, LeftOut, Level, Note, StreamPlan
from stantools.migration.plan.units import about, format_duration, format_size
from stantools.migration.source import ChannelSource
from stantools.notation import counted
from stantools.store.limits import ChannelLimits, StoreLimits

#: What a stream counts for each message besides subject and payload, and what a header block has at least.
RECORD_OVERHEAD = 30
_ORIGIN_OVERHEAD = 118

#: How long a server remembers message ids, where nothing else is said.
DUPLICATE_WINDOW = 120_000_000_000


def stream_limits(limits: Sequence[ChannelLimits]) -> dict[str, int]:
    """Returns the limits of a stream that holds channels with these limits."""
    settings = dict(UNLIMITED)
    if not limits:
        return settings
    if len(limits) == 1:
        settings["max_msgs"] = limits[0].max_msgs or -1
    elif all(each.max_msgs for each in limits):
        settings["max_msgs_per_subject"] = max(each.max_msgs for each in limits)
    if all(each.max_bytes for each in limits):
        settings["max_bytes"] = sum(each.max_bytes for each in limits)
    if all(each.max_age_ns for each in limits):
        settings["max_age"] = max(each.max_age_ns for each in limits)
    return settings


def left_out_limits(limits: StoreLimits, channels: Iterable[str]) -> list[LeftOut]:
    """Lists the limits that a stream has no counterpart of."""
    left = []
    of_channels = [limits.limits_for(channel) for channel in channels]
    if limits.max_channels:
        left.append(LeftOut("limit", "", f"max_channels {limits.max_channels}: an account limits its streams instead"))
    if subscribed := [each.max_subs for each in of_channels if each.max_subs]:
        text = f"max_subs ({_span(sorted({str(s) for s in subscribed}, key=int))}): see max_consumers of a stream"
        left.append(LeftOut("limit", "", text, len(subscribed)))
    if inactive := sorted({each.max_inactivity_ns for each in of_channels if each.max_inactivity_ns}):
        count = sum(bool(each.max_inactivity_ns) for each in of_channels)
        text = f"max_inactivity ({_span([format_duration(i) for i in inactive])}): a stream stays until it is deleted"
        left.append(LeftOut("limit", "", text, count))
    return left


def _span(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def size_in_stream(stream: StreamPlan) -> int:
    """Returns about how many bytes a stream will count, reply subjects not among them."""
    extra = RECORD_OVERHEAD + (_ORIGIN_OVERHEAD if stream.origin_headers else 0)
    return sum(part.bytes + part.messages * (extra + len(part.subject.encode())) for part in stream.parts)


def removed_at_once(stream: StreamPlan, channels: Sequence[ChannelSource], now_ns: int) -> Iterator[Note]:
    """Tells what the limits of a stream would remove as soon as they apply.

    Args:
        stream: The stream.
        channels: The channels that go into it.
        now_ns: The present, in nanoseconds since 1970.

    Raises:
        StoreUnreadableError: The store cannot be read any more.
    """
    settings = stream.settings
    if (age := settings.get("max_age", 0)) > 0:
        old = sum(older_than(channel, now_ns - age) for channel in channels)
        if old:
            verb = "is" if old == 1 else "are"
            text = f"{old} of {counted(stream.messages, 'message')} {verb} older than max_age {format_duration(age)}"
            yield _removed(stream, text, "max_age")
    if 0 <= (most := settings.get("max_msgs", -1)) < stream.messages:
        yield _removed(stream, f"{counted(stream.messages - most, 'message')} more than max_msgs {most}", "max_msgs")
    if (most := settings.get("max_msgs_per_subject", -1)) >= 0:
        more = sum(max(part.messages - most, 0) for part in stream.parts)
        if more:
            yield _removed(
                stream, f"{counted(more, 'message')} more than max_msgs_per_subject {most}", "max_msgs_per_subject"
            )
    if 0 <= (most := settings.get("max_bytes", -1)) < (size := size_in_stream(stream)):
        text = f"the messages need about {about(size)} in the stream, max_bytes is {format_size(most)}"
        yield _removed(stream, text, "max_bytes")


def _removed(stream: StreamPlan, text: str, setting: str) -> Note:
    remedy = f"raise {setting} or set it to `unlimited` to keep them"
    return Note(
        Level.WARNING, stream.name, f"{text}: the server removes the oldest as soon as the limit applies", remedy
    )


def older_than(channel: ChannelSource, moment: int) -> int:
    """Counts the messages at the beginning of a channel that are older than a moment.

    Timestamps are looked up by halving, so few messages are read; where times go back it is an estimate.

    Raises:
        StoreUnreadableError: The store cannot be read any more.
    """
    if not channel.count or channel.first_timestamp >= moment:
        return 0
    if channel.last_timestamp < moment:
        return channel.count
    # Everything up to `low` is older, `high` and what follows is not.
    low, high = channel.first, channel.sequences.last
    while high - low > 1:
        middle = (low + high) // 2
        sequence, timestamp = _next_message(channel, middle)
        if timestamp >= moment or sequence >= high:
            high = middle
        else:
            low = sequence
    return sum(min(last, low) - first + 1 for first, last in channel.sequences if first <= low)


def _next_message(channel: ChannelSource, sequence: int) -> tuple[int, int]:
    """Returns sequence and time of the first message that is not before a sequence."""
    _, columns = next(channel.pieces(sequence - 1, finish=False))
    return int(columns.sequence[0]), int(columns.timestamp[0])
