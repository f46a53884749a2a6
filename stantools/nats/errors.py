"""What goes wrong between us and a server, each as an exception of its own. All of them end with exit code 3."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stantools.errors import StantoolsError

if TYPE_CHECKING:
    from stantools.nats.options import ConnectOptions


class NatsError(StantoolsError):
    """Something about a NATS server, the connection to it, or what it answers."""


class LoginError(NatsError):
    """The server does not take us; the message is its own."""


class NotEncryptedError(NatsError):
    """The server does not offer TLS, and nothing was sent to it."""


class CannotConnectError(NatsError):
    """No server could be reached, or none let us in."""


class ConnectionLostError(NatsError):
    """The connection broke while something was under way; the client goes on trying to connect again."""

    passing = True


class NoAnswerError(NatsError):
    """A request was not answered in time."""

    passing = True


class NobodyListensError(NoAnswerError):
    """Nobody listens on the subject of a request."""


class PermissionDeniedError(NatsError):
    """The user may not publish or subscribe to a subject.

    Attributes:
        subject: Which one.
    """

    def __init__(self, subject: str, action: str, user: str | None = None, remedy: str = "") -> None:
        who = f"the user {user}" if user else "this user"
        super().__init__(
            f"{who} may not {action} {subject}",
            remedy or f"let the user {action} it, or connect as another user",
        )
        self.subject = subject


#: Error of the JetStream API -> what can be done about it.
_REMEDIES = {
    10008: "the cluster has no leader at the moment: wait until it has one",
    10023: "free something on the server, or raise its JetStream limits",
    10025: "the server knows no such option: leave it out of the configuration, or take a newer server",
    10026: "raise max_consumers of the stream or of the account",
    10027: "raise max_streams of the account, or remove streams that are not needed",
    10028: "raise the memory limit of the account or the server",
    10039: "enable JetStream for the account that the user belongs to",
    10049: "see the server's log: its disk may be full",
    10047: "free storage on the server, or raise the limit of the account or the server",
    10052: "change the stream's configuration",
    10058: "choose another name for the stream, or remove the one that is there",
    10059: "see which streams there are, and check JetStream domain and account",
    10065: "give the stream other subjects, for instance with a prefix, or change the stream that has them",
    10074: "ask for fewer replicas, or use a cluster",
    10076: "enable JetStream on the server",
    10113: "set max_bytes of the stream: the account demands it",
    10130: "choose another name for the stream, or remove the one that is there",
}


#: A cluster has no leader, or not enough servers for a stream.
_PASSING = frozenset({10008, 10118})


class ApiError(NatsError):
    """The JetStream API answered a request with an error.

    Attributes:
        operation: The request, for instance `STREAM.CREATE.ORDERS`.
        code: The kind of error, like an HTTP status.
        err_code: Which error (jetstream-api.md section 11), 0 where the server gives none.
        description: The server's own words.
    """

    def __init__(self, operation: str, code: int, err_code: int, description: str) -> None:
        super().__init__(
            f"the server refused {operation}: {description} (error {code}/{err_code})",
            _REMEDIES.get(err_code, ""),
        )
        self.operation = operation
        self.code = code
        self.err_code = err_code
        self.description = description
        self.passing = err_code in _PASSING


#: There is no room for anything more: not enough resources, memory, storage; a store could not be made.
_FULL = frozenset({10023, 10028, 10047, 10049})


def is_full(problem: BaseException | None) -> bool:
    """Tells whether a server refused something for a reason that holds for every other stream: it has no room."""
    while problem is not None:
        if isinstance(problem, ApiError) and (problem.err_code in _FULL or "no space left" in problem.description):
            return True
        problem = problem.__cause__
    return False


#: What the server says in a refusal, in lower case -> (reason, remedy).
_REFUSALS = {
    "user authentication expired": ("the credentials have expired", "get new ones from the operator of the system"),
    "account authentication expired": ("the account has expired", "ask the operator of the system"),
    "maximum connections exceeded": ("it has as many connections as it may", "close some, or raise max_connections"),
    "maximum account active connections": ("the account has as many connections as it may", "close some"),
    "secure connection - tls required": ("it demands TLS", "say tls:// in the URL"),
    "authentication timeout": ("it got no credentials in time", "try again, with a longer timeout"),
    "no responders requires headers support": ("it has no message headers", "take a server of version 2.2 or newer"),
}


def why(problem: BaseException, options: ConnectOptions, info: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the reason that goes behind the URL of a server, and a remedy.

    Args:
        problem: What the client met.
        options: How it tried to connect. Nothing secret of them gets into the texts.
        info: What the server has said about itself, if it came to that.
    """
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {problem.verify_message or 'unknown reason'}",
            "give the file of the authority that signed it with --tls-ca, and the name in it if the URL has another",
        )
    if isinstance(problem, ssl.SSLError):
        return _why_tls(problem, options)
    if isinstance(problem, NotEncryptedError):
        return (
            "it does not offer TLS, so nothing was sent to it",
            "leave the TLS options and tls:// out if an unencrypted connection is meant",
        )
    if isinstance(problem, TimeoutError):
        return (
            f"no answer within {options.timeout:g} s",
            "check host, port and firewall; a server that wants TLS at once needs that in its context (tls_first)",
        )
    if isinstance(problem, socket.gaierror):
        return "there is no such host", "check the URL"
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there", "start the server, or check host and port"
    if isinstance(problem, OSError) and info.get("tls_verify"):
        # It closes the connection behind the handshake; its reason is often lost with it.
        return _why_certificate(options)
    if isinstance(problem, LoginError):
        return _why_refused(problem.message.removeprefix("nats: "), options)
    if isinstance(problem, ConnectionResetError) and problem.errno is None:  # by us, or before it said a word
        return (
            "it does not speak the NATS protocol",
            "check host and port; a server that wants TLS at once needs that in its context (tls_first)",
        )
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem}", "check host, port and network"
    return "it does not speak the NATS protocol", "check host and port"


def _why_tls(problem: ssl.SSLError, options: ConnectOptions) -> tuple[str, str]:
    reason = (problem.reason or str(problem)).replace("_", " ").lower()
    if any(word in reason for word in ("certificate required", "bad certificate", "unknown ca")):
        return _why_certificate(options)
    return f"TLS failed: {reason}", "check that the server offers TLS on this port"


def _why_certificate(options: ConnectOptions) -> tuple[str, str]:
    if options.tls_cert:
        return "it does not accept our certificate", "give one that the server's authority has signed"
    return "it demands a certificate from us", "give one with --tls-cert and --tls-key"


def _why_refused(text: str, options: ConnectOptions) -> tuple[str, str]:
    said = text.lower()
    for start, answer in _REFUSALS.items():
        if said.startswith(start):
            return answer
    if "authorization" in said or "authentication" in said:
        if options.has_credentials:
            return "it does not accept the credentials", "check user, password, token, nkey or credentials file"
        return (
            "it wants credentials and none were given",
            "give --user, --token-env, --nkey, --creds or --context",
        )
    return f"it refused: {text}", "see the server's log"
