"""Reserved subjects: servers take requests there, with the rights of the client that publishes.

A client names subjects for the broker to publish to: replies, inboxes, delivery subjects, destinations of republished
messages. What the broker publishes needs no permission; a client must not use it to reach a server that the client
itself may not ask. So a bus publishes nothing to a reserved subject, whoever computed it, but what servers say among
themselves (`to_servers`). A subject of that kind is as good as one to which nobody has subscribed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from stantools.nats.subjects import valid_subject

#: How subjects begin on which servers listen.
_SERVERS: Final = (b"$JS.", b"$JSC.", b"$NRG.", b"$SYS.", b"_STAN.")
#: Of these, where clients listen: events, and the acknowledgements of publishes of every streaming client.
_CLIENTS: Final = (b"$JS.EVENT.", b"_STAN.acks.")


class ReservedSubjects:
    """The subjects on which servers listen.

    Args:
        discover_prefix: A further beginning of them, without its dot; empty for none.
    """

    def __init__(self, discover_prefix: bytes = b"") -> None:
        self._servers = (*_SERVERS, discover_prefix + b".") if discover_prefix else _SERVERS
        #: How they begin: nearly all subjects are told apart by that, and quickly.
        self._heads: Final = frozenset(each[:2] for each in self._servers)
        #: Says whether a subject that a client has named is one to publish to. The same ones come again and again.
        self.is_inbox: Final = lru_cache(maxsize=8192)(self._is_inbox)

    def __contains__(self, subject: bytes) -> bool:
        if subject[:2] not in self._heads:
            return False
        return subject.startswith(self._servers) and not subject.startswith(_CLIENTS)

    def _is_inbox(self, subject: bytes) -> bool:
        return valid_subject(subject) and subject not in self


#: Those of every server, whatever its options.
RESERVED: Final = ReservedSubjects()
