"""The server and the user of a connection: the URLs of NATS servers, and the options of CONNECT.

Facts: server-operations.md section 15.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from stantools import __version__
from stantools.errors import UsageError
from stantools.nats.credentials import read_creds, read_nkey
from stantools.nats.errors import LoginError

#: schemes of URLs, with their default ports
PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class NatsAddress:
    scheme: str  #: `nats`, `tls`, `ws` or `wss`
    host: str  #: name or address
    port: int
    path: str = ""  #: path of a WebSocket URL
    user: str | None = None  #: user of the URL, if any; a token if there is no password
    password: str | None = field(default=None, repr=False)  #: password of the URL, if any
    name: str = ""  #: host name that the certificate must have

    def __str__(self) -> str:
        return self.url if not self.user else self.url.replace("://", "://[REDACTED]@", 1)

    @property
    def url(self) -> str:
        """The URL, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def tls(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def web(self) -> bool:
        return self.scheme in ("ws", "wss")

    @classmethod
    def parse(cls, text: str) -> NatsAddress:
        """Parses `host`, `host:port` or a URL `nats://`, `tls://`, `ws://` or `wss://`.

        Raises UsageError for other texts, without repeating the text, which may hold a password.
        """
        expected = "expected something like nats://host:4222"
        if _SPLITS.search(_authority(text)):
            raise UsageError("the user or the password in the URL of a server contains one of / ? #", _ENCODE)
        try:
            parts = urlsplit(text if "://" in text else f"nats://{text}")
            port, host = parts.port, parts.hostname
        except ValueError as problem:
            remedy = _ENCODE if "@" in text else expected
            # Python's own texts quote parts of the URL.
            wrong_port = "ort" in str(problem)
            reason = "the port is not a number from 0 to 65535" if wrong_port else "it cannot be parsed"
            raise UsageError(f"the URL of a server is malformed: {reason}", remedy) from None
        if parts.scheme not in PORTS:
            raise UsageError(f"there are no servers for {parts.scheme!r} URLs", expected)
        if not host or any(character.isspace() or not character.isprintable() for character in host):
            raise UsageError("the URL of a server names no host", expected)
        web = parts.scheme in ("ws", "wss")
        if parts.query or parts.fragment or (parts.path not in ("", "/") and not web):
            raise UsageError("the URL of a server has characters after the port", expected)
        return cls(
            parts.scheme,
            host,
            PORTS[parts.scheme] if port is None else port,
            parts.path if web else "",
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password is not None else None,
            host,
        )

    def discovered(self, address: str) -> NatsAddress | None:
        """Returns another server that this one has announced as `host:port`; None if that is not an address."""
        try:
            parts = urlsplit(f"nats://{address}")
            if parts.hostname and parts.port:
                return replace(self, host=parts.hostname, port=parts.port)
        except ValueError:
            pass
        return None


_SPLITS: Final = re.compile(r"[/?#]")
_ENCODE: Final = (
    "these characters must be percent-encoded in a user or a password: / as %2F, ? as %3F, # as %23, @ as %40, "
    ": as %3A, [ as %5B, ] as %5D, % as %25"
)


def _authority(url: str) -> str:
    """Returns the presumed user and password of a URL: everything up to the last @ before a path."""
    scheme, _, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    user, at, _ = rest.rpartition("@")
    # the path of a WebSocket may contain an @ of its own
    host = _SPLITS.split(rest, maxsplit=1)[0]
    return "" if not at or (scheme in ("ws", "wss") and _HOST.fullmatch(host)) else user


_HOST: Final = re.compile(r"([^@]*@)?[^@:]+(:[0-9]{1,5})?")


_NO_PORT: Final = re.compile(r"(?<=[^:/]):(?!//|[0-9]{1,5}(?:[/,]|$))[^,\s]+")


def redacted(url: str) -> str:
    """Returns a URL, or several with commas between them, without user and password."""
    # A password may contain any character, even if it is invalid in a URL.
    found = re.sub(r"(^|://)(?:(?!://).)*@", r"\1[REDACTED]@", url, flags=re.DOTALL)
    # An invalid port may be a part of a password: it contains a comma, at which the list was split.
    return found if "[:" in found or "]:" in found else _NO_PORT.sub(":[REDACTED]", found)


_USER: Final = re.compile(r"((?:[^/?#]*:)?//)?[^/?#]*@")


def without_login(url: str) -> str:
    """Returns a well-formed URL without user and password."""
    user = _USER.match(url)
    return (user[1] or "") + url[user.end() :] if user else url


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a client; empty fields were not given."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)  #: used instead of user and password
    jwt: str = field(default="", repr=False)  #: the user's JWT
    seed: str = field(default="", repr=False)  #: seed of the nkey that signs the server's nonce

    @classmethod
    def read(
        cls,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        nkey: Path | None = None,
        creds: Path | None = None,
    ) -> Login:
        """Reads a login from its options; `nkey` is the file of a seed, `creds` that of a JWT with its seed."""
        jwt, seed = read_creds(creds) if creds else ("", read_nkey(nkey) if nkey else "")
        return cls(user or "", password or "", token or "", jwt, seed)

    def options(self, name: str, server: NatsAddress, info: dict[str, Any]) -> dict[str, object]:
        """Returns the options of CONNECT for a server, with its INFO and the name of the connection.

        Raises LoginError if the server requires a signature but sent no nonce.
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
        elif self.token:
            options["auth_token"] = self.token
        elif self.user:
            options |= {"user": self.user, "pass": self.password}
        if self.seed:
            nonce = info.get("nonce")
            if not isinstance(nonce, str) or not nonce:
                raise LoginError("nats: nkeys not supported by the server")
            options |= self.signature(nonce)
        return options

    def signature(self, nonce: str) -> dict[str, str]:
        """Returns the members of CONNECT that prove the possession of the key: `sig`, and `nkey` or `jwt`."""
        import nkeys  # type: ignore[import-untyped]

        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        try:
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            public = pair.public_key.decode()
        finally:
            pair.wipe()
        signed = {"jwt": self.jwt} if self.jwt else {"nkey": public}
        return signed | {"sig": signature}
