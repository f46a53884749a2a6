"""Errors of the JetStream API, with the numbers and words that clients know (jetstream-server.md section 24)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.streams.subject_mapping import MappingError


#: number of the error for a message larger than its stream accepts
TOO_LARGE: Final = 10054


class RequestError(Exception):
    """A refused request or message: status as in HTTP, number of the error, and text."""

    def __init__(self, code: int, number: int, text: str) -> None:
        super().__init__(text)
        self.code, self.number, self.text = code, number, text

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.number, "description": self.text}


def bad_request() -> RequestError:
    """Members of a request contradict each other, or one is missing."""
    return RequestError(400, 10003, "bad request")


def invalid_json(reason: str) -> RequestError:
    """The request is not JSON, or has a member of the wrong type."""
    return RequestError(400, 10025, f"invalid JSON: {reason}")


def not_empty() -> RequestError:
    """The request has a body and takes none."""
    return RequestError(400, 10038, "expected an empty request payload")


def no_message() -> RequestError:
    return RequestError(404, 10037, "no message found")


def stream_not_found() -> RequestError:
    return RequestError(404, 10059, "stream not found")


def name_mismatch() -> RequestError:
    """The stream in the subject is not the one in the request."""
    return RequestError(400, 10056, "stream name in subject does not match request")


def invalid_config(text: str) -> RequestError:
    return RequestError(500, 10052, text)


def invalid_mapping(error: MappingError, what: str, of_source: int, otherwise: int) -> RequestError:
    """A mapping of subjects is not valid; errors in its source have a number of their own."""
    if error.source:
        return RequestError(400, of_source, f"{what} source: {error.text}")
    return RequestError(400, otherwise, f"{what}: {error.text}")


def adjusted(text: str) -> RequestError:
    """The server would adjust the configuration, and the request is pedantic."""
    return RequestError(400, 10157, f"pedantic mode: {text}")


def sealed() -> RequestError:
    return RequestError(400, 10109, "invalid operation on sealed stream")


def store_failed(text: str) -> RequestError:
    return RequestError(503, 10077, text)


def wrong_last_sequence(actual: int) -> RequestError:
    return RequestError(400, 10071, f"wrong last sequence: {actual}")


def overloaded() -> RequestError:
    """Too many requests are waiting."""
    return RequestError(503, 10008, "JetStream system temporarily unavailable")


def unavailable() -> RequestError:
    """The request needs a cluster."""
    return RequestError(503, 10010, "JetStream clustering support required")
