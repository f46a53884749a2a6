"""Names of clients, channels and inboxes, and a server's subjects (streaming-protocol.md sections 4, 6 and 10)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stantools.format.proto import store_pb2 as pb

_CLIENT_ID = re.compile(rb"[a-zA-Z0-9_-]+")


def text(name: bytes) -> str:
    """Decodes a name for a log line or JSON."""
    return name.decode("utf-8", "replace")


def valid_client_id(name: bytes) -> bool:
    return _CLIENT_ID.fullmatch(name) is not None


def valid_channel(name: bytes) -> bool:
    """Returns whether a channel name is valid (streaming-protocol.md section 10.2)."""
    return not (
        not name
        or name[0] == ord(".")
        or name[-1] == ord(".")
        or b".." in name
        or b"/" in name
        or b"*" in name
        or b">" in name
    )


def case_key(name: bytes) -> str:
    """Returns the part of a channel name that must be unique (streaming-protocol.md section 10.3)."""
    return name.decode("utf-8", "surrogateescape").lower()


def durable_key(client_id: bytes, channel: bytes, durable: bytes) -> bytes:
    """Returns the key of a plain durable. As in the original, different durables can share a key."""
    return b"-".join((client_id, channel, durable))


@dataclass(frozen=True, slots=True)
class Subjects:
    """Subjects that a server listens on; `publish` is the prefix, without the channel."""

    discovery: bytes
    publish: bytes
    subscribe: bytes
    unsubscribe: bytes
    sub_close: bytes
    close: bytes

    @property
    def pings(self) -> bytes:
        """Subject on which clients ask whether they are still registered; it is not stored."""
        return self.discovery + b".pings"

    @classmethod
    def of(cls, server: pb.ServerInfo) -> Subjects:
        return cls(
            server.discovery, server.publish, server.subscribe, server.unsubscribe, server.sub_close, server.close
        )


def sub_close_subject(cluster_id: bytes) -> bytes:
    """Returns the subject of subscription closes, for old stores without one."""
    return b"_STAN.subclose." + cluster_id


def partition_subject(cluster_id: bytes) -> bytes:
    """Returns the subject on which servers announce their channels to each other."""
    return b"_STAN.part." + cluster_id


def fault_tolerance_subject(cluster_id: bytes, group: bytes) -> bytes:
    """Returns the subject on which the active server of a group announces that it is alive."""
    return b"_STAN.ft." + cluster_id + b"." + group


def leader_subject(cluster_id: bytes) -> bytes:
    """Returns the subject on which the leader of servers on the same streams answers the other servers."""
    return b"_STAN.leader." + cluster_id


def new_server(cluster_id: bytes, discover_prefix: bytes) -> pb.ServerInfo:
    """Returns the record of a new server."""
    return pb.ServerInfo(
        cluster_id=cluster_id,
        discovery=discover_prefix + b"." + cluster_id,
        publish=b"_STAN.pub." + cluster_id,
        subscribe=b"_STAN.sub." + cluster_id,
        unsubscribe=b"_STAN.unsub." + cluster_id,
        close=b"_STAN.close." + cluster_id,
        sub_close=sub_close_subject(cluster_id),
        acks_subs=b"_STAN.ack." + cluster_id,
    )
