"""What can be configured about the streaming rules (server-operations.md sections 3 and 7). Times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The release of the original whose behaviour this is.
VERSION: Final = "0.25.6"
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    """Options of the streaming server."""

    cluster_id: bytes = b"test-cluster"  #: id that clients name when they connect
    discover_prefix: bytes = b"_STAN.discover"  #: prefix of the subject for connect requests
    heartbeat_interval: int = 30 * _SECOND  #: time between two heartbeats to a client
    heartbeat_timeout: int = 10 * _SECOND  #: how long an answer may take
    heartbeat_fail_count: int = 10  #: more failures than this in a row close the client
    replace_durable: bool = False  #: a new subscription takes over a durable that is active, instead of being refused
    #: A message may name another channel than the NATS subject that it is published to does.
    any_publish_subject: bool = False
    #: Messages that are stored before a flush, at most; with the original's number, some more.
    io_batch_size: int = 1024
    io_sleep_time: int = 0  #: how long to wait for more messages before a flush; 0 does not wait
    partitioning: bool = False  #: only the channels that limits name are served
    partitions: tuple[bytes, ...] = ()  #: their names and patterns
    ft_group: bytes = b""  #: group of servers that share the store, one of them active; empty without
    detect: bool = True  #: look for another server with the same cluster id at start (standalone servers do)
