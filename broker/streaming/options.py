"""What can be configured about the streaming rules (server-operations.md sections 3 and 7). Times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The release of the original whose behaviour this is.
VERSION: Final = "0.25.6"
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    """Options of the streaming server.

    Attributes:
        cluster_id: Id that clients name when they connect.
        discover_prefix: Prefix of the subject for connect requests.
        heartbeat_interval: Time between two heartbeats to a client.
        heartbeat_timeout: How long an answer may take.
        heartbeat_fail_count: More failures than this in a row close the client.
        replace_durable: A new subscription takes over a durable that is active, instead of being refused.
        any_publish_subject: A message may name another channel than the NATS subject that it is published to does.
        io_batch_size: Messages that are stored before a flush, at most; with the original's number, some more.
        io_sleep_time: How long to wait for more messages before a flush; 0 does not wait.
        partitioning: Only the channels that limits name are served.
        partitions: Their names and patterns.
        ft_group: Group of servers that share the store, one of them active; empty without.
        detect: Look for another server with the same cluster id at start (stand-alone servers do).
    """

    cluster_id: bytes = b"test-cluster"
    discover_prefix: bytes = b"_STAN.discover"
    heartbeat_interval: int = 30 * _SECOND
    heartbeat_timeout: int = 10 * _SECOND
    heartbeat_fail_count: int = 10
    replace_durable: bool = False
    any_publish_subject: bool = False
    io_batch_size: int = 1024
    io_sleep_time: int = 0
    partitioning: bool = False
    partitions: tuple[bytes, ...] = ()
    ft_group: bytes = b""
    detect: bool = True
