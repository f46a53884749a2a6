"""Where and as whom to connect: the URLs of NATS servers, TLS, and what CONNECT says.

Facts: server-operations.md section 15.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from stantools import __version__
from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.nats.credentials import read_creds, read_nkey, tls_context

if TYPE_CHECKING:
    import ssl

    from broker.config.options import ClientTLSOptions, ConnectionOptions

_DEFAULT_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_ONE_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+:[0-9]{1,5}/?\Z")


class BusError(StantoolsError):
    """There is no connection to NATS; the text is what the original says."""


@dataclass(frozen=True, slots=True)
class Server:
    """A NATS server to connect to.

    Attributes:
        host: Name or address.
        port: Port.
        tls: It has to be TLS.
        user: User of the URL, empty for none; a token where there is no password.
        password: Password of the URL; None without.
        name: Host that the certificate should be for.
    """

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str | None = None
    name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        secret = "[REDACTED]@" if self.user else ""
        return f"{'tls' if self.tls else 'nats'}://{secret}{host}:{self.port}"


def servers(options: ConnectionOptions) -> list[Server]:
    """Returns the servers that the URLs name.

    Raises:
        BusError: One of them is malformed.
    """
    if not ("@" in options.urls or "," in options.urls or _ONE_URL.match(options.urls)):
        raise BusError(f"malformed url: {options.urls}")
    return [_server(url) for url in options.url_list]


def _server(url: str) -> Server:
    try:
        parts: SplitResult = urlsplit(url if "://" in url else f"nats://{url}")
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        raise BusError(f"malformed url: {redacted(url)}") from None
    if not parts.hostname or parts.scheme not in _SCHEMES:
        raise BusError(f"malformed url: {redacted(url)}")
    password = None if parts.password is None else unquote(parts.password)
    user = unquote(parts.username or "")
    return Server(parts.hostname, port, parts.scheme == "tls", user, password, parts.hostname)


def redacted(url: str) -> str:
    """Returns a URL without user and password."""
    return re.sub(r"(^|://)[^/@\s]*@", r"\1[REDACTED]@", url)


def discovered(address: str, like: Server) -> Server | None:
    """Returns a server that another one told about as `host:port`; None if that is no address."""
    try:
        parts = urlsplit(f"nats://{address}")
        if parts.hostname and parts.port:
            return Server(parts.hostname, parts.port, like.tls, like.user, like.password, like.name)
    except ValueError:
        pass
    return None


def client_context(options: ClientTLSOptions) -> ssl.SSLContext:
    """Returns the context that checks the server's certificate and shows ours.

    Raises:
        BusError: A file cannot be read or does not hold what it should.
    """
    try:
        return tls_context(options.ca, options.cert, options.key, verify=not options.skip_verify)
    except StoreUnreadableError as problem:
        files = ", ".join(str(path) for path in (options.ca, options.cert, options.key) if path)
        raise BusError(f"error parsing TLS files {files}: {problem.__cause__}") from problem


class Login:
    """Says who we are.

    Args:
        options: With at most one of nkey and credentials.

    Raises:
        StantoolsError: A file cannot be read or does not hold what it should.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._seed = ""
        self._jwt = ""
        if options.credentials:
            self._jwt, self._seed = read_creds(Path(options.credentials))
        elif options.nkey_seed_file:
            self._seed = read_nkey(Path(options.nkey_seed_file))

    def options(self, name: str, server: Server, info: dict[str, Any]) -> dict[str, object]:
        """Returns the options of CONNECT.

        Args:
            name: Of the connection.
            server: Where it goes.
            info: What the server said.

        Raises:
            BusError: The server wants a signature but gave nothing to sign.
        """
        options: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "tls_required": server.tls,
            "name": name,
            "lang": "python",
            "version": __version__,
            "protocol": 1,
            "echo": True,
            "headers": bool(info.get("headers")),
            "no_responders": bool(info.get("headers")),
        }
        if server.user and server.password is None:
            options["auth_token"] = server.user
        elif server.user:
            options |= {"user": server.user, "pass": server.password}
        elif self._options.token:
            options["auth_token"] = self._options.token
        elif self._options.user:
            options |= {"user": self._options.user, "pass": self._options.password}
        if self._seed:
            nonce = info.get("nonce")
            if not isinstance(nonce, str) or not nonce:
                raise BusError("nats: nkeys not supported by the server")
            options |= self.signature(nonce)
        return options

    def signature(self, nonce: str) -> dict[str, str]:
        """Returns the members of CONNECT that show that we have the key: `sig`, and `nkey` or `jwt`."""
        import nkeys  # type: ignore[import-untyped]

        pair = nkeys.from_seed(bytearray(self._seed.encode()))
        try:
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            public = pair.public_key.decode()
        finally:
            pair.wipe()
        signed = {"jwt": self._jwt} if self._jwt else {"nkey": public}
        return signed | {"sig": signature}
