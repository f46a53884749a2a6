"""Reserved subjects: servers take requests there, with the rights of the publishing client.

Clients name subjects to which the broker publishes: replies, inboxes, delivery subjects, destinations of republished
messages. The broker needs no permission to publish, and a client must not use it to reach a server that the client
itself may not ask. So a bus publishes nothing to a reserved subject, except the requests of servers to each other
(`to_servers`). A reserved subject named by a client behaves like one without subscribers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from stantools.nats.subjects import valid_subject

#: Prefixes of subjects on which servers listen.
_SERVERS: Final = (b"$JS.", b"$JSC.", b"$NRG.", b"$SYS.", b"_STAN.")
#: Exceptions, on which clients listen: events, and the publish acknowledgements of streaming clients.
_CLIENTS: Final = (b"$JS.EVENT.", b"_STAN.acks.")


class ReservedSubjects:
    """The reserved subjects; `discover_prefix` is a further prefix of them, without its dot, or empty."""

    def __init__(self, discover_prefix: bytes = b"") -> None:
        self._servers = (*_SERVERS, discover_prefix + b".") if discover_prefix else _SERVERS
        #: First two bytes of the prefixes, which rule out nearly all subjects quickly.
        self._heads: Final = frozenset(each[:2] for each in self._servers)
        #: Returns whether the broker may publish to a subject named by a client. The same subjects recur often.
        self.is_inbox: Final = lru_cache(maxsize=8192)(lambda subject: valid_subject(subject) and subject not in self)

    def __contains__(self, subject: bytes) -> bool:
        if subject[:2] not in self._heads:
            return False
        return subject.startswith(self._servers) and not subject.startswith(_CLIENTS)


#: The reserved subjects of every server, whatever its options.
RESERVED: Final = ReservedSubjects()
