"""Start positions: where a new subscription begins (streaming-protocol.md section 13)."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.stores.interface import MessageStore
from stantools.format.proto import store_pb2 as pb


def last_sent(request: pb.SubscriptionRequest, messages: MessageStore, now: int) -> tuple[int, str]:
    """Returns the sequence behind which a new subscription starts, and how the log tells it (note 5).

    Args:
        request: With a start position that has been checked.
        messages: The channel's messages; `first` and `last` are 0 if there never was one.
        now: Nanoseconds since the epoch.
    """
    first, last = messages.first, messages.last
    position = request.start_position
    if position == pb.LAST_RECEIVED:
        behind = max(last - 1, 0)
        return behind, f"last message, seq={behind + 1}"
    if position == pb.TIME_DELTA_START:
        behind = max(messages.sequence_at(now - request.start_time_delta) - 1, 0)
        return behind, f"from time time='{_time(now - request.start_time_delta)}' seq={behind + 1}"
    if position == pb.SEQUENCE_START:
        asked = request.start_sequence
        behind = last if asked > last else max(max(asked, first) - 1, 0)
        return behind, f"from sequence, asked_seq={asked} actual_seq={behind + 1}"
    if position == pb.FIRST:
        behind = max(first - 1, 0)
        return behind, f"from beginning, seq={behind + 1}"
    return last, f"new-only, seq={last + 1}"


def _time(timestamp: int) -> str:
    seconds, rest = divmod(timestamp, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp}ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest:09d} +0000 UTC"
