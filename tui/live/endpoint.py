"""Asking a server's monitoring over HTTP: one connection that is kept, bounded in time and size, never with a surprise.

Whatever is at the other end, it ends with a document (a JSON object) or with a `MonitorError` that says what to do.
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

#: Where the documents of a streaming server lie.
STREAMING: Final = "/streaming"
#: Seconds that the server may say nothing, and that one answer may take as a whole.
SILENCE: Final = 5.0
PATIENCE: Final = 20.0
#: An answer that is larger is not read to its end: about 300,000 subscriptions.
LARGEST: Final = 64 << 20
_CHUNK = 1 << 18
_EXPECTED = "expected something like http://host:8222"
_START = "start the server with -m 8222 (or http_port in its configuration), and name that port"


class MonitorError(StantoolsError):
    """The monitoring of a server could not be asked, or answered something else."""


class GoneError(MonitorError):
    """Nothing answers: nobody listens, the connection broke, or it takes too long."""


class TooLargeError(MonitorError):
    """An answer is larger than we read."""


class MissingError(MonitorError):
    """The server answers, but has no such document (404)."""


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a server's monitoring, taken apart."""

    tls: bool  #: by HTTPS
    host: str  #: host name or address
    port: int  #: TCP port
    #: What lies before the paths of the server, for instance behind a proxy; "" or "/…" without a slash at the end.
    base: str = ""
    login: tuple[str, str] | None = field(default=None, repr=False)  #: user and password; never shown

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `host:port` or a URL; one of the documents may be named in it, as it is copied from elsewhere.

        Raises:
            UsageError: It is no such URL. The message does not repeat it: it may hold a password.
        """
        try:
            parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
            port, host = parts.port, parts.hostname
        except ValueError:
            raise UsageError("the URL of the monitoring cannot be taken apart", _EXPECTED) from None
        if parts.scheme in ("nats", "tls", "ws", "wss"):
            remedy = f"{_EXPECTED}; where clients connect is named with --server"
            raise UsageError(f"monitoring is asked by HTTP, not by {parts.scheme}://", remedy)
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"monitoring is asked by HTTP, not by {escape_line(parts.scheme)}://", _EXPECTED)
        if not host or any(c.isspace() or not c.isprintable() for c in host) or not _is_host(host):
            raise UsageError("the URL of the monitoring names no host", _EXPECTED)
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
    """Asks one server. Used by one thread at a time.

    Args:
        address: Where it is.
        silence: Seconds that it may say nothing.
        patience: Seconds that an answer may take as a whole.
        largest: Bytes of an answer that are read at most.
    """

    def __init__(
        self, address: Address, *, silence: float = SILENCE, patience: float = PATIENCE, largest: int = LARGEST
    ) -> None:
        self.address = address
        self._silence = silence
        self._patience = patience
        self._largest = largest
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, **query: str | int) -> dict[str, Any]:
        """Returns a document.

        Args:
            path: Where it lies on the server, such as `/streaming/serverz`.
            query: What is asked for.

        Raises:
            MonitorError: It could not be read, and why.
        """
        target = f"{self.address.base}{path}" + (f"?{urlencode(query)}" if query else "")
        kept = self._connection is not None
        try:
            try:
                return self._ask(target)
            except (http.client.RemoteDisconnected, ConnectionError):
                # A server closes connections that nobody uses for a while.
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
        """Closes the connection; the next question opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, target: str) -> dict[str, Any]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Accept": "application/json", "User-Agent": "stantools"}
        if self.address.login is not None:
            login = ":".join(self.address.login).encode("utf-8", "surrogateescape")
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._connection.request("GET", target, headers=headers)
        response = self._connection.getresponse()
        # Told without what was asked for in particular.
        path = target.partition("?")[0]
        body = self._read(response, path)
        if response.status != 200:
            raise self._refused(response, path, body)
        return self._document(path, body)

    def _connect(self) -> http.client.HTTPConnection:
        address = self.address
        if not address.tls:
            return http.client.HTTPConnection(address.host, address.port, timeout=self._silence)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=self._silence, context=context)

    def _read(self, response: http.client.HTTPResponse, target: str) -> bytes:
        deadline = time.monotonic() + self._patience
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
                    f"{self.address.shown}: the answer to {target} took more than {self._patience:g} s",
                    "the server or the network is overloaded",
                )
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        # Reading in parts does not show it that all is read: without this, nothing more can be asked.
        response.close()
        return bytes(body)

    def _document(self, target: str, body: bytes) -> dict[str, Any]:
        where = f"{self.address.shown}: the answer to {target}"
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip()[:1] == b"<":
                raise MonitorError(
                    f"{where} is a page for people", f"this is not the monitoring of a server: {_START}"
                ) from None
            raise MonitorError(
                f"{where} is not JSON: {escape_line(body[:40].decode('latin-1'))}",
                f"is this the monitoring of a NATS Streaming server? {_START}",
            ) from None
        if not isinstance(document, dict):
            raise MonitorError(f"{where} is JSON, but no object", "is this the monitoring of a NATS Streaming server?")
        return document

    def _refused(self, response: http.client.HTTPResponse, target: str, body: bytes) -> MonitorError:
        status, where = response.status, self.address.shown
        if status in (401, 403):
            remedy = "give user and password in the URL: http://USER:PASSWORD@host:8222 (they are never shown)"
            if self.address.login is not None:
                remedy = "check user and password in the URL"
            return MonitorError(f"{where} does not let us in (HTTP {status})", remedy)
        if status == 404:
            return MissingError(
                f"{where} has no {target} (HTTP 404)",
                "this is no NATS Streaming server, or not its monitoring: check host, port and path",
            )
        if 300 <= status < 400:
            place = escape_line(_without_login(response.headers.get("Location", "")))[:120]
            return MonitorError(f"{where} sends us elsewhere: {place or 'nowhere'}", "name that URL with --monitor")
        text = escape_line(body[:200].decode("utf-8", "replace").strip())
        if text.startswith("<"):
            text = ""
        said = f": {text}" if text else ""
        return MonitorError(f"{where} answered {target} with HTTP {status}{said}", "see the server's log")

    def _explained(self, problem: Exception) -> MonitorError:
        """Says in words what went wrong with the connection."""
        where = self.address.shown
        if isinstance(problem, TimeoutError):
            return GoneError(
                f"{where} did not answer within {self._silence:g} s",
                "check host and port; the server may be overloaded",
            )
        if isinstance(problem, ssl.SSLCertVerificationError):
            remedy = "name the authority to trust with the environment variable SSL_CERT_FILE, or the right host"
            return MonitorError(f"{where}: its certificate is not good: {problem.verify_message}", remedy)
        if isinstance(problem, ssl.SSLError):
            return MonitorError(f"{where}: no TLS there: {problem.reason}", "try http:// instead of https://")
        if isinstance(problem, socket.gaierror):
            return GoneError(f"{where}: there is no host of that name: {problem.strerror}", "check the URL")
        if isinstance(problem, ConnectionRefusedError):
            return GoneError(f"{where}: nothing is listening there", f"is the server running? {_START}")
        if isinstance(problem, http.client.RemoteDisconnected | ConnectionError | http.client.IncompleteRead):
            return GoneError(f"{where}: the connection broke", "the server may have ended, or speak TLS: try https://")
        if isinstance(problem, http.client.HTTPException | ValueError):
            if "INFO {" in str(problem):
                return MonitorError(f"{where} is where clients connect to NATS, not the monitoring", _START)
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


def _without_login(url: str) -> str:
    try:
        parts = urlsplit(url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    except ValueError:
        return ""
