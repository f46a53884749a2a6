"""Errors between a client and a NATS server. All of them lead to exit code 3."""

from __future__ import annotations

import re
from typing import Final

from stantools.errors import StantoolsError


class NatsError(StantoolsError):
    """An error of a NATS server, the connection to it, or its answers."""


class LoginError(NatsError):
    """The server rejects the login; the message is its own."""


class NotEncryptedError(NatsError):
    """The server does not offer TLS, and nothing was sent to it."""


class CannotConnectError(NatsError):
    """No server could be reached, or none accepted the client."""


class ConnectionLostError(NatsError):
    """The connection broke during an operation; the client keeps trying to reconnect."""

    retriable = True


class NoAnswerError(NatsError):
    retriable = True


class NoResponderError(NoAnswerError):
    """There is no subscriber for the subject of a request."""


class PermissionDeniedError(NatsError):
    def __init__(self, subject: str, action: str, user: str | None = None, remedy: str = "") -> None:
        who = f"the user {user}" if user else "this user"
        super().__init__(
            f"{who} may not {action} {subject}",
            remedy or f"let the user {action} it, or connect as another user",
        )
        self.subject = subject


#: remedies, by the error code of the JetStream API
_REMEDIES = {
    10008: "the cluster has no leader at the moment: wait until one is elected",
    10023: "free resources on the server, or raise its JetStream limits",
    10025: "the server does not know the option: remove it from the configuration, or use a newer server",
    10026: "raise max_consumers of the stream or of the account",
    10027: "raise max_streams of the account, or remove streams that are not needed",
    10028: "raise the memory limit of the account or the server",
    10039: "enable JetStream for the account that the user belongs to",
    10049: "see the server's log: its disk may be full",
    10047: "free storage on the server, or raise the limit of the account or the server",
    10054: "raise max_msg_size of the stream",
    10052: "change the stream's configuration",
    10058: "choose another name for the stream, or remove the existing one",
    10059: "see which streams there are, and check JetStream domain and account",
    10065: "give the stream other subjects, for instance with a prefix, or change the stream that has them",
    10074: "ask for fewer replicas, or use a cluster",
    10077: "free space in the stream, or raise its limits",
    10076: "enable JetStream on the server",
    10113: "set max_bytes of the stream: the account requires it",
    10130: "choose another name for the stream, or remove the existing one",
}


#: The message expects another last sequence than the stream has, which the server's text names.
WRONG_LAST: Final = 10071
#: No leader, too few servers for a stream, another last sequence (which is queried then), too many requests.
_RETRIABLE: Final = frozenset({10008, 10118, WRONG_LAST, 10167})
_UNAVAILABLE: Final = 503
_LAST_SEQUENCE: Final = re.compile(r"last sequence: (\d+)")


class ApiError(NatsError):
    def __init__(self, operation: str, code: int, err_code: int, description: str) -> None:
        super().__init__(
            f"the server refused {operation}: {description} (error {code}/{err_code})",
            _REMEDIES.get(err_code, ""),
        )
        self.operation = operation  #: the request, for instance `STREAM.CREATE.ORDERS`
        self.code = code  #: kind of the error, like an HTTP status
        self.err_code = err_code  #: number of the error (jetstream-api.md section 11), 0 if the server sends none
        self.description = description  #: the server's own words
        self.retriable = err_code in _RETRIABLE or (code == _UNAVAILABLE and not err_code)

    @property
    def last_counted(self) -> int | None:
        """The stream's last sequence by the server's count; None for other errors."""
        found = _LAST_SEQUENCE.search(self.description)
        return int(found[1]) if found and self.err_code == WRONG_LAST else None


#: no resources, memory or storage left; a store could not be made
_FULL = frozenset({10023, 10028, 10047, 10049})


def is_full(problem: BaseException | None) -> bool:
    """Returns whether a server refused for lack of room, which holds for every other stream as well."""
    while problem is not None:
        if isinstance(problem, ApiError) and (problem.err_code in _FULL or "no space left" in problem.description):
            return True
        problem = problem.__cause__
    return False
