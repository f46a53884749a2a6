"""HTTP client of a server's monitoring: one persistent connection, with limits of time and size.

Every request returns a JSON object or raises a `MonitorError` that tells the user what to do.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from stantools.errors import StantoolsError, UsageError
from stantools.escaping import escape_line
from stantools.nats.login import without_login

#: Path of the documents of a streaming server.
STREAMING: Final = "/streaming"
#: Seconds without a byte from the server, and seconds for a whole answer.
SILENCE: Final = 5.0
PATIENCE: Final = 20.0
#: Maximum size of an answer in bytes: about 300,000 subscriptions.
LARGEST: Final = 64 << 20
_CHUNK = 1 << 18
_EXPECTED = "expected something like http://host:8222"
_START = "start the server with -m 8222 (or http_port in its configuration), and name that port"


class MonitorError(StantoolsError):
    """The monitoring did not answer, or its answer is no document of a server."""


class GoneError(MonitorError):
    """Connection refused, lost or timed out."""


class TooLargeError(MonitorError):
    """The answer exceeds the size limit."""


class MissingError(MonitorError):
    """The server answers, but has no such document (404)."""


@dataclass(frozen=True, slots=True)
class Address:
    tls: bool  #: use HTTPS
    host: str
    port: int
    #: Path before the paths of the server, for instance at a proxy; "" or "/…" without a slash at the end.
    base: str = ""
    login: tuple[str, str] | None = field(default=None, repr=False)  #: user and password; never shown

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses `host:port` or a URL, also the URL of one of the documents.

        Raises:
            UsageError: The text is no such URL. The message does not repeat it, because it may contain a
                password.
        """
        try:
            parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
            port, host = parts.port, parts.hostname
        except ValueError:
            raise UsageError("the monitoring URL is malformed", _EXPECTED) from None
        if parts.scheme in ("nats", "tls", "ws", "wss"):
            remedy = f"{_EXPECTED}; the address for clients belongs to --server"
            raise UsageError(f"monitoring uses HTTP, not {parts.scheme}://", remedy)
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"monitoring uses HTTP, not {escape_line(parts.scheme)}://", _EXPECTED)
        if not host or any(c.isspace() or not c.isprintable() for c in host) or not _is_host(host):
            raise UsageError("the monitoring URL has no host", _EXPECTED)
        tls = parts.scheme == "https"
        login = None
        if parts.username is not None:
            login = unquote(parts.username), unquote(parts.password or "")
        path = quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
        for known in ("/serverz", "/storez", "/clientsz", "/channelsz", "/ui"):
            path = path.removesuffix(f"{STREAMING}{known}")
        path = path.rstrip("/").removesuffix(STREAMING)
        if port is None:
            port = (443 if tls else 80) if "://" in text else 8222
        return cls(tls, host, port, path, login)


class Endpoint:
    """A client for one server, for one thread at a time; `silence` and `patience` are seconds, `largest` is bytes."""

    def __init__(
        self, address: Address, *, silence: float = SILENCE, patience: float = PATIENCE, largest: int = LARGEST
    ) -> None:
        self.address = address
        self._read_timeout = silence
        self._request_timeout = patience
        self._largest = largest
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, **query: str | int) -> dict[str, Any]:
        """Requests a document such as `/streaming/serverz`. Raises `MonitorError`."""
        target = f"{self.address.base}{path}" + (f"?{urlencode(query)}" if query else "")
        kept = self._connection is not None
        try:
            try:
                return self._ask(target)
            except (http.client.RemoteDisconnected, ConnectionError):
                # The server closes idle connections.
                self.close()
                if not kept:
                    raise
                return self._ask(target)
        except MonitorError:
            self.close()
            raise
        except (OSError, http.client.HTTPException, ValueError, UnicodeError) as problem:
            self.close()
            raise self._explained(problem) from problem

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, target: str) -> dict[str, Any]:
        if self._connection is None:
            host, port = self.address.host, self.address.port
            if self.address.tls:
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=self._read_timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._read_timeout)
        headers = {"Accept": "application/json", "User-Agent": "stantools"}
        if self.address.login is not None:
            login = ":".join(self.address.login).encode("utf-8", "surrogateescape")
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._connection.request("GET", target, headers=headers)
        response = self._connection.getresponse()
        # Error messages name the path without the query.
        path = target.partition("?")[0]
        body = self._read(response, path)
        if response.status != 200:
            raise self._refused(response, path, body)
        return self._document(path, body)

    def _read(self, response: http.client.HTTPResponse, target: str) -> bytes:
        deadline = time.monotonic() + self._request_timeout
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > self._largest:
                raise TooLargeError(
                    f"{self.address.shown}: the answer to {target} is larger than {self._largest >> 20} MiB",
                    "is this the monitoring of a NATS Streaming server?",
                )
            if time.monotonic() > deadline:
                raise GoneError(
                    f"{self.address.shown}: the answer to {target} took more than {self._request_timeout:g} s",
                    "the server or the network is overloaded",
                )
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        # http.client does not notice the end of a body that is read in parts; without this, the connection takes no
        # further request.
        response.close()
        return bytes(body)

    def _document(self, target: str, body: bytes) -> dict[str, Any]:
        where = f"{self.address.shown}: the answer to {target}"
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip()[:1] == b"<":
                raise MonitorError(
                    f"{where} is a web page", f"this is not the monitoring of a server: {_START}"
                ) from None
            raise MonitorError(
                f"{where} is not JSON: {escape_line(body[:40].decode('latin-1'))}",
                f"is this the monitoring of a NATS Streaming server? {_START}",
            ) from None
        if not isinstance(document, dict):
            raise MonitorError(
                f"{where} is JSON, but not an object", "is this the monitoring of a NATS Streaming server?"
            )
        return document

    def _refused(self, response: http.client.HTTPResponse, target: str, body: bytes) -> MonitorError:
        status, where = response.status, self.address.shown
        if status in (401, 403):
            remedy = "give user and password in the URL: http://USER:PASSWORD@host:8222 (they are never shown)"
            if self.address.login is not None:
                remedy = "check user and password in the URL"
            return MonitorError(f"{where} refuses access (HTTP {status})", remedy)
        if status == 404:
            return MissingError(
                f"{where} has no {target} (HTTP 404)",
                "this is no NATS Streaming server, or not its monitoring: check host, port and path",
            )
        if 300 <= status < 400:
            place = escape_line(without_login(response.headers.get("Location", "")))[:120]
            return MonitorError(f"{where} redirects to {place or 'no URL'}", "name that URL instead")
        text = escape_line(body[:200].decode("utf-8", "replace").strip())
        if text.startswith("<"):
            text = ""
        said = f": {text}" if text else ""
        return MonitorError(f"{where} answered {target} with HTTP {status}{said}", "see the server's log")

    def _explained(self, problem: Exception) -> MonitorError:
        where = self.address.shown
        if isinstance(problem, TimeoutError):
            return GoneError(
                f"{where} did not answer within {self._read_timeout:g} s",
                "check host and port; the server may be overloaded",
            )
        if isinstance(problem, ssl.SSLCertVerificationError):
            remedy = "name the authority to trust with the environment variable SSL_CERT_FILE, or the right host"
            return MonitorError(f"{where}: its certificate is not valid: {problem.verify_message}", remedy)
        if isinstance(problem, ssl.SSLError):
            return MonitorError(f"{where}: no TLS there: {problem.reason}", "try http:// instead of https://")
        if isinstance(problem, socket.gaierror):
            return GoneError(f"{where}: unknown host: {problem.strerror}", "check the URL")
        if isinstance(problem, ConnectionRefusedError):
            return GoneError(f"{where}: nothing is listening there", f"is the server running? {_START}")
        if isinstance(problem, http.client.RemoteDisconnected | ConnectionError | http.client.IncompleteRead):
            return GoneError(f"{where}: the connection broke", "the server may have ended, or speak TLS: try https://")
        if isinstance(problem, http.client.HTTPException | ValueError):
            if "INFO {" in str(problem):
                return MonitorError(f"{where} is the port for NATS clients, not the monitoring", _START)
            return MonitorError(f"{where} does not speak HTTP", _START)
        if isinstance(problem, OSError):
            return GoneError(f"{where}: {problem.strerror or problem}", "check host and port")
        return MonitorError(f"{where}: {type(problem).__name__}", "check the URL")


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return ":" in host
    return True
