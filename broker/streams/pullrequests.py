"""Pull requests and their order: in rotation, by overflow thresholds, or for one pinned client.

Facts: jetstream-server.md section 12. One client is pinned for all groups of a consumer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from broker.streams.api_errors import RequestError
from broker.streams.requests import members, parse, time_text
from stantools.streamfiles.stream_config import BOOL, INT, STRING

if TYPE_CHECKING:
    from broker.streams.consumer import Consumer

_KINDS: Final[Mapping[str, str]] = {
    "batch": "int",
    "expires": INT,
    "no_wait": BOOL,
    "max_bytes": INT,
    "idle_heartbeat": INT,
    "group": STRING,
    "id": STRING,
    "min_pending": INT,
    "min_ack_pending": INT,
}


#: largest body (bytes) in the cache of parsed bodies
_SHORT: Final = 200


class PullStatusError(Exception):
    """A pull request ends with a status instead of messages."""


@dataclass(slots=True, eq=False)
class PullRequest:
    reply: bytes  #: subject for the messages
    batch: int = 1  #: messages still to be sent
    short_of: int = 0  #: difference between `batch` and a negative requested number
    expires: int = 0  #: end (ns since 1970); 0 for never
    no_wait: bool = False  #: ends when no message is left
    bytes_left: int | None = None  #: bytes still allowed; None for no limit
    heartbeat: int = 0  #: interval of heartbeats (ns); 0 for none
    beat: int = 0  #: time of the next heartbeat
    served: bool = False  #: has received a message
    group: str | None = None  #: priority group; None if the request has no such member
    pin: str = ""  #: the client's pin id
    least_pending: int = 0  #: minimum of messages to be delivered; 0 and less for always
    least_unacknowledged: int = 0  #: alternative minimum of messages that await acknowledgement
    #: prefix of the preview's acknowledgement subjects, whose requests know no statuses; empty for current requests
    short: bytes = b""

    @classmethod
    def read(cls, reply: bytes, body: bytes, now: int, short: bytes = b"") -> PullRequest:
        """Reads the body of a request. Raises `PullStatusError` with the status if it is invalid."""
        text = body.strip()
        if short or not text.startswith(b"{"):
            count = int(text) if text.isdigit() and 0 < len(text) < 10 and int(text) else 1
            return cls(reply, count, short=short)
        wanted = _members_of_short(text) if len(text) <= _SHORT else _members(text)
        expires, heartbeat = wanted.get("expires", 0), max(wanted.get("idle_heartbeat", 0), 0)
        if heartbeat and 2 * heartbeat > expires:
            raise PullStatusError("400 Bad Request - heartbeat value too large")
        batch = wanted.get("batch", 1)
        return cls(
            reply,
            batch=max(batch, 1),
            short_of=max(1 - batch, 0),
            # A request with a time in the past gets an answer as well.
            expires=max(now + expires, 1) if expires else 0,
            no_wait=wanted.get("no_wait", False),
            bytes_left=wanted["max_bytes"] if wanted.get("max_bytes", 0) > 0 else None,
            heartbeat=heartbeat,
            beat=now + heartbeat if heartbeat else 0,
            group=wanted.get("group", ""),
            pin=wanted.get("id", ""),
            least_pending=wanted.get("min_pending", 0),
            least_unacknowledged=wanted.get("min_ack_pending", 0),
        )


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        return members(parse(body), _KINDS, "JSApiConsumerGetNextRequest")
    except RequestError as error:
        raise PullStatusError(f"400 Bad Request - {error.text.removeprefix('invalid JSON: ')}") from None


#: Clients send the same body again and again.
_members_of_short: Final = lru_cache(maxsize=256)(_members)


class Priorities:
    """The priority policy of a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._pin = ""
        self._since = self._heard = 0

    @property
    def pin(self) -> str:
        """Id of the pinned client; empty without one, and after a change to another policy."""
        return self._pin if self._consumer.config.priority_policy == "pinned_client" else ""

    def admit(self, request: PullRequest, now: int) -> None:
        """Raises `PullStatusError` if a request does not fit the policy."""
        config = self._consumer.config
        overflow = request.least_pending > 0 or request.least_unacknowledged > 0
        if not (config.priority_policy or overflow or request.pin):
            return
        if overflow and config.priority_policy != "overflow":
            raise PullStatusError("400 Bad Request - Not a Overflow Priority consumer")
        if request.pin and config.priority_policy != "pinned_client":
            raise PullStatusError("400 Bad Request - Not a Pinned Client Priority consumer")
        if config.priority_policy and request.group == "":
            raise PullStatusError("400 Bad Request - Priority Group missing")
        if config.priority_policy and request.group not in (None, *config.priority_groups):
            raise PullStatusError("400 Bad Request - Invalid Priority Group")
        if request.pin and self.pin:
            if request.pin != self.pin:
                raise PullStatusError("423 Nats-Pin-Id mismatch")
            self._heard = now

    def candidates(self, requests: Iterable[PullRequest]) -> Iterator[PullRequest]:
        """Iterates over the requests that may get the next message or a refusal, in their order."""
        policy = self._consumer.config.priority_policy
        for request in requests:
            if policy == "pinned_client":
                wanted = bool(request.pin) or not self.pin
            elif policy == "overflow":
                wanted = self._overflows(request)
            else:
                wanted = True
            if wanted:
                yield request

    def _overflows(self, request: PullRequest) -> bool:
        bounds = (
            (request.least_pending, self._consumer.num_pending),
            (request.least_unacknowledged, len(self._consumer.pending)),
        )
        given = [least <= count for least, count in bounds if least > 0]
        return not given or any(given)

    def take(self, request: PullRequest, now: int) -> bool:
        """Returns whether the request may get a message; its client becomes the pinned one if there is none."""
        if self._consumer.config.priority_policy != "pinned_client":
            return True
        if not self.pin and not request.pin:
            self._pin = request.pin = secrets.token_hex(11)
            self._since = self._heard = now
            self._publish_event("pinned", {"pinned_id": self.pin})
        return request.pin == self.pin

    @property
    def lines(self) -> tuple[bytes, ...]:
        """Additional header lines of messages."""
        return (b"Nats-Pin-Id: " + self.pin.encode(),) if self.pin else ()

    @property
    def expires(self) -> int:
        """Time (ns since 1970) at which the pinned client loses its pin; 0 for never."""
        return self._heard + self._consumer.config.priority_timeout if self.pin else 0

    def expire(self, now: int) -> None:
        """Unpins the client whose last request is too old."""
        if 0 < self.expires <= now:
            self.unpin("timeout")

    def unpin(self, reason: str) -> None:
        if self.pin:
            self._pin = ""
            self._since = 0
            self._publish_event("unpinned", {"reason": reason})

    def _publish_event(self, what: str, fields: dict[str, Any]) -> None:
        group = self._consumer.config.priority_groups[0]
        self._consumer.event(f"consumer_group_{what}", {"account": "$G", "group": group, **fields})

    def info(self) -> dict[str, Any]:
        """Returns the members of an answer about the first group."""
        pinned = {"pinned_client_id": self.pin} if self.pin else {}
        return {"group": self._consumer.config.priority_groups[0], **pinned, "pinned_ts": time_text(self._since)}
