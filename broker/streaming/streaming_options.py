"""Options of the streaming rules (server-operations.md sections 3 and 7). Times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stantools.server_options import BOOL, DURATION, INT, STRING, as_bytes, server_field

#: release of the original with the same behaviour
VERSION: Final = "0.25.6"
_SECOND: Final = 1_000_000_000
_SHORTEST_TIMER: Final = 1_000_000


def _timer(duration: int) -> int:
    # a timer of zero length would keep the process busy
    return max(duration, _SHORTEST_TIMER)


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    cluster_id: bytes = server_field(
        STRING, "Cluster id for clients", "cid cluster_id", "id cid cluster_id", "test-cluster", convert=as_bytes
    )
    discover_prefix: bytes = server_field(
        STRING, "Prefix of the subject for connect requests", "", "discover_prefix", "_STAN.discover", convert=as_bytes
    )
    heartbeat_interval: int = server_field(
        DURATION, "Time between two heartbeats to a client", "hbi hb_interval",
        "hbi hb_interval server_to_client_hb_interval", 30 * _SECOND, convert=_timer,
    )  # fmt: skip
    heartbeat_timeout: int = server_field(
        DURATION, "Time limit for the answer to a heartbeat", "hbt hb_timeout",
        "hbt hb_timeout server_to_client_hb_timeout", 10 * _SECOND, convert=_timer,
    )  # fmt: skip
    heartbeat_fail_count: int = server_field(
        INT, "Failed heartbeats before a client is closed", "hbf hb_fail_count",
        "hbf hb_fail_count server_to_client_hb_fail_count", 10,
    )  # fmt: skip
    replace_durable: bool = server_field(
        BOOL, "A new subscription takes over an active durable", "replace_durable",
        "replace_durable replace_durables replace_duplicate_durable replace_duplicate_durables",
    )  # fmt: skip
    any_publish_subject: bool = server_field(
        BOOL, "A message may name a channel other than the subject it was published to",
        "any_publish_subject", "any_publish_subject",
        remark="the original always allows it, which defeats permissions for single channels",
    )  # fmt: skip
    #: the original's default allows more
    io_batch_size: int = server_field(
        INT, "Limit of messages stored before a flush", "io_batch_size", "", 1024, convert=lambda count: max(count, 1)
    )
    io_sleep_time: int = server_field(
        INT, "Microseconds to wait for more messages before a flush", "io_sleep_time",
        convert=lambda microseconds: max(microseconds, 0) * 1000,
    )  # fmt: skip
    partitioning: bool = server_field(BOOL, "Serve only the channels named by the limits", "", "partitioning")
    partitions: tuple[bytes, ...] = ()  #: their names and patterns
    ft_group: bytes = server_field(
        STRING, "Group of fault-tolerant servers with one store", "ft_group", "ft_group ft_group_name",
        convert=as_bytes, remark="with a file store, not with clustering",
    )  # fmt: skip
    detect: bool = True  #: look for another server with the same cluster id at start (standalone servers do)
