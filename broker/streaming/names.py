"""Names of clients, channels and inboxes, and a server's subjects (streaming-protocol.md sections 4, 6 and 10)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stantools.format.proto import store_pb2 as pb

_CLIENT_ID = re.compile(rb"[a-zA-Z0-9_-]+")


def text(name: bytes) -> str:
    """Returns a name for a log line or JSON."""
    return name.decode("utf-8", "replace")


def valid_client_id(name: bytes) -> bool:
    """Returns whether a client may call itself so."""
    return _CLIENT_ID.fullmatch(name) is not None


def valid_channel(name: bytes) -> bool:
    """Returns whether a channel may be called so (streaming-protocol.md section 10.2)."""
    return not (
        not name
        or name[0] == ord(".")
        or name[-1] == ord(".")
        or b".." in name
        or b"/" in name
        or b"*" in name
        or b">" in name
    )


def without_case(name: bytes) -> str:
    """Returns what two channel names must not have in common (streaming-protocol.md section 10.3)."""
    return name.decode("utf-8", "surrogateescape").lower()


def durable_key(client_id: bytes, channel: bytes, durable: bytes) -> bytes:
    """Returns what makes a plain durable unique. That different ones can share a key is so in the original as well."""
    return b"-".join((client_id, channel, durable))


@dataclass(frozen=True, slots=True)
class Subjects:
    """What a server listens on; `publish` is the prefix, without the channel."""

    discovery: bytes
    publish: bytes
    subscribe: bytes
    unsubscribe: bytes
    sub_close: bytes
    close: bytes

    @property
    def pings(self) -> bytes:
        """Where clients ask whether they are still registered. Never stored."""
        return self.discovery + b".pings"

    @classmethod
    def of(cls, server: pb.ServerInfo) -> Subjects:
        """Returns the subjects that are stored, whatever they are."""
        return cls(
            server.discovery, server.publish, server.subscribe, server.unsubscribe, server.sub_close, server.close
        )


def sub_close_subject(cluster_id: bytes) -> bytes:
    """Returns where subscription closes go, for stores that are older than these."""
    return b"_STAN.subclose." + cluster_id


def partition_subject(cluster_id: bytes) -> bytes:
    """Returns the subject on which servers announce their channels to each other."""
    return b"_STAN.part." + cluster_id


def fault_tolerance_subject(cluster_id: bytes, group: bytes) -> bytes:
    """Returns the subject on which the active server of a group announces that it is alive."""
    return b"_STAN.ft." + cluster_id + b"." + group


def leader_subject(cluster_id: bytes) -> bytes:
    """Returns where the leader of servers on the same streams answers, so that the others know that it is there."""
    return b"_STAN.leader." + cluster_id


def new_server(cluster_id: bytes, discover_prefix: bytes) -> pb.ServerInfo:
    """Returns what a server stores about itself the first time."""
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
