"""Options of the streaming rules (server-operations.md sections 3 and 7). Times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: release of the original with the same behaviour
VERSION: Final = "0.25.6"
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    cluster_id: bytes = b"test-cluster"  #: id in the clients' connect requests
    discover_prefix: bytes = b"_STAN.discover"  #: prefix of the subject for connect requests
    heartbeat_interval: int = 30 * _SECOND  #: time between two heartbeats to a client
    heartbeat_timeout: int = 10 * _SECOND  #: time for an answer
    heartbeat_fail_count: int = 10  #: more failures than this in a row close the client
    replace_durable: bool = False  #: a new subscription takes over an active durable instead of being refused
    #: accept messages that name another channel than their NATS subject
    any_publish_subject: bool = False
    #: most messages that are stored before a flush; the original's default allows more
    io_batch_size: int = 1024
    io_sleep_time: int = 0  #: time that a flush waits for more messages; 0 for none
    partitioning: bool = False  #: serve only the channels named in the limits
    partitions: tuple[bytes, ...] = ()  #: their names and patterns
    ft_group: bytes = b""  #: group of servers that share the store, one of them active; empty for none
    detect: bool = True  #: look for another server with the same cluster id at start (standalone servers do)
