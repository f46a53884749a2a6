"""Errors of the JetStream API, with the numbers and words that clients know (jetstream-server.md section 24)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.streams.subject_mapping import MappingError


#: The number of a message that is larger than its stream takes.
TOO_LARGE: Final = 10054


class RequestError(Exception):
    """A request or message is refused.

    Args:
        code: Status, as in HTTP.
        number: Which error.
        text: What is wrong.
    """

    def __init__(self, code: int, number: int, text: str) -> None:
        super().__init__(text)
        self.code, self.number, self.text = code, number, text

    def as_json(self) -> dict[str, Any]:
        """Returns it as it is in an answer."""
        return {"code": self.code, "err_code": self.number, "description": self.text}


def bad_request() -> RequestError:
    """The members of a request contradict each other, or one is missing."""
    return RequestError(400, 10003, "bad request")


def invalid_json(reason: str) -> RequestError:
    """A request is no JSON, or has a member of another type."""
    return RequestError(400, 10025, f"invalid JSON: {reason}")


def not_empty() -> RequestError:
    """A request that takes no options has some."""
    return RequestError(400, 10038, "expected an empty request payload")


def no_message() -> RequestError:
    """There is no such message."""
    return RequestError(404, 10037, "no message found")


def stream_not_found() -> RequestError:
    """There is no such stream."""
    return RequestError(404, 10059, "stream not found")


def name_mismatch() -> RequestError:
    """The stream in the subject is not that of the request."""
    return RequestError(400, 10056, "stream name in subject does not match request")


def invalid_config(text: str) -> RequestError:
    """A stream cannot have such a configuration."""
    return RequestError(500, 10052, text)


def invalid_mapping(error: MappingError, what: str, of_source: int, otherwise: int) -> RequestError:
    """A mapping of subjects is not valid; errors in its source have a number of their own."""
    if error.source:
        return RequestError(400, of_source, f"{what} source: {error.text}")
    return RequestError(400, otherwise, f"{what}: {error.text}")


def adjusted(text: str) -> RequestError:
    """A configuration would not be taken as it was sent, which a client wants it to be."""
    return RequestError(400, 10157, f"pedantic mode: {text}")


def sealed() -> RequestError:
    """A sealed stream does not change."""
    return RequestError(400, 10109, "invalid operation on sealed stream")


def store_failed(text: str) -> RequestError:
    """A message is not stored."""
    return RequestError(503, 10077, text)


def wrong_last_sequence(actual: int) -> RequestError:
    """A message expected another one to be the last."""
    return RequestError(400, 10071, f"wrong last sequence: {actual}")


def overloaded() -> RequestError:
    """Too many requests wait."""
    return RequestError(503, 10008, "JetStream system temporarily unavailable")


def unavailable() -> RequestError:
    """What only a cluster can do."""
    return RequestError(503, 10010, "JetStream clustering support required")
