"""Why a server could not be connected to, in words, and what the user can do about it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nats import errors as nats_errors

if TYPE_CHECKING:
    from stantools.migration.target.options import ConnectOptions

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
        problem: What the client library met.
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
    if isinstance(problem, nats_errors.SecureConnWantedError):
        return (
            "it does not offer TLS, so nothing was sent to it",
            "leave the TLS options and tls:// out if an unencrypted connection is meant",
        )
    if isinstance(problem, TimeoutError | asyncio.TimeoutError | nats_errors.TimeoutError):
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
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem}", "check host, port and network"
    if isinstance(problem, nats_errors.Error):
        return _why_refused(str(problem).removeprefix("nats: ").strip("'\" \r\n"), options)
    if isinstance(problem, ImportError):
        return "WebSocket connections need the package aiohttp", "install it, or take a nats:// URL"
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
    if "empty response" in said or "json parse" in said or "unexpected eof" in said:
        return (
            "it does not speak the NATS protocol",
            "check host and port; a server that wants TLS at once needs that in its context (tls_first)",
        )
    return f"it refused: {text}", "see the server's log"
