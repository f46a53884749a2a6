"""Errors that clients get (streaming-protocol.md section 26)."""

from __future__ import annotations

from typing import Final

from broker.stores.interface import StorageError

INVALID_CONNECT: Final = b"stan: invalid connection request"
INVALID_CLIENT_ID: Final = b"stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
CLIENT_REGISTERED: Final = b"stan: clientID already registered"
CLIENT_REPLACED: Final = b"client has been replaced or is no longer registered"
INVALID_PUBLISH: Final = b"stan: invalid publish request"
INVALID_SUBSCRIBE: Final = b"stan: invalid subscription request"
CLIENT_ID_MISSING: Final = b"stan: clientID missing"
INVALID_ACK_WAIT: Final = b"stan: invalid ack wait time, should be >= 1s"
INVALID_MAX_IN_FLIGHT: Final = b"stan: invalid MaxInflight, should be >= 1"
INVALID_START: Final = b"stan: invalid start position"
INVALID_SUBJECT: Final = b"stan: invalid subject"
UNKNOWN_CLIENT: Final = b"stan: unknown clientID"
INVALID_DURABLE_NAME: Final = b"stan: durable name of a durable queue subscriber can't contain the character ':'"
DUPLICATE_DURABLE: Final = b"stan: duplicate durable registration"
INVALID_UNSUBSCRIBE: Final = b"stan: invalid unsubscribe request"
INVALID_SUBSCRIPTION: Final = b"stan: invalid subscription"
UNKNOWN_CHANNEL: Final = b"stan: unknown channel"
INVALID_CLOSE: Final = b"stan: invalid close request"


def too_large(size: int, limit: int, max_payload: int) -> bytes:
    """Returns the error for a message with `size` bytes of data that can neither be delivered nor stored.

    The message may have `limit` bytes of data; `max_payload` is the NATS server's limit.
    """
    text = (
        b"stan: message too large: %d bytes, and %d are the most in this channel (max_payload of the NATS server is %d)"
    )
    return text % (size, limit, max_payload)


class RequestRefusedError(Exception):
    """A request refused by the rules; the client gets the text."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text.decode(errors="replace"))
        self.text = text


def text_of(error: RequestRefusedError | StorageError) -> bytes:
    return error.text if isinstance(error, RequestRefusedError) else str(error).encode(errors="surrogateescape")
