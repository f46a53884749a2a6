"""Where and as whom to connect: the URLs of NATS servers, and what CONNECT says.

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

#: Schemes of URLs, and the port that each stands for.
PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Server:
    """A NATS server to connect to."""

    scheme: str  #: `nats`, `tls`, `ws` or `wss`
    host: str  #: name or address
    port: int
    path: str = ""  #: what a URL with WebSocket asks for
    user: str | None = None  #: user of the URL, if it names one; a token where there is no password
    password: str | None = field(default=None, repr=False)  #: password of the URL, if there is one
    name: str = ""  #: host that the certificate should be for

    def __str__(self) -> str:
        return self.url if not self.user else self.url.replace("://", "://[REDACTED]@", 1)

    @property
    def url(self) -> str:
        """The URL, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def tls(self) -> bool:
        """Whether the URL demands TLS."""
        return self.scheme in ("tls", "wss")

    @property
    def web(self) -> bool:
        """Whether it is reached by WebSocket."""
        return self.scheme in ("ws", "wss")

    @classmethod
    def parse(cls, text: str) -> Server:
        """Reads `host`, `host:port` or a URL `nats://`, `tls://`, `ws://` or `wss://`.

        Raises:
            UsageError: It is none of them. The message does not repeat it: it may hold a password.
        """
        expected = "expected something like nats://host:4222"
        if _SPLITS.search(_authority(text)):
            raise UsageError("the user or the password in the URL of a server contains one of / ? #", _ENCODE)
        try:
            parts = urlsplit(text if "://" in text else f"nats://{text}")
            port, host = parts.port, parts.hostname
        except ValueError as problem:
            remedy = _ENCODE if "@" in text else expected
            raise UsageError(f"the URL of a server is malformed: {_reason(problem)}", remedy) from None
        if parts.scheme not in PORTS:
            raise UsageError(f"there are no servers for {parts.scheme!r} URLs", expected)
        if not host or any(character.isspace() or not character.isprintable() for character in host):
            raise UsageError("the URL of a server names no host", expected)
        web = parts.scheme in ("ws", "wss")
        if parts.query or parts.fragment or (parts.path not in ("", "/") and not web):
            raise UsageError("the URL of a server has something after the port", expected)
        return cls(
            parts.scheme,
            host,
            PORTS[parts.scheme] if port is None else port,
            parts.path if web else "",
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password is not None else None,
            host,
        )

    def discovered(self, address: str) -> Server | None:
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
    "these characters have to be percent-encoded in a user or a password: / as %2F, ? as %3F, # as %23, @ as %40, "
    ": as %3A, [ as %5B, ] as %5D, % as %25"
)


def _authority(url: str) -> str:
    """Returns what is meant to be user and password in a URL: all up to the last @, if that is before a path."""
    scheme, _, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    user, at, _ = rest.rpartition("@")
    # A path of a WebSocket may have one of its own.
    host = _SPLITS.split(rest, maxsplit=1)[0]
    return "" if not at or (scheme in ("ws", "wss") and _HOST.fullmatch(host)) else user


_HOST: Final = re.compile(r"([^@]*@)?[^@:]+(:[0-9]{1,5})?")


def _reason(problem: ValueError) -> str:
    """What is wrong with a URL, without the parts of it that Python quotes."""
    return "the port is not a number from 0 to 65535" if "ort" in str(problem) else "it cannot be taken apart"


_NO_PORT: Final = re.compile(r"(?<=[^:/]):(?!//|[0-9]{1,5}(?:[/,]|$))[^,\s]+")


def redacted(url: str) -> str:
    """Returns a URL, or several with commas between them, without user and password."""
    # A password may have any character in it, also those that it must not have in a URL.
    found = re.sub(r"(^|://)(?:(?!://).)*@", r"\1[REDACTED]@", url, flags=re.DOTALL)
    # Nor is a port that is none necessarily one: where a list is split, a password with a comma is.
    return found if "[:" in found or "]:" in found else _NO_PORT.sub(":[REDACTED]", found)


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are. What is empty was not given."""

    user: str = ""  #: user name
    password: str = field(default="", repr=False)  #: the user's password
    token: str = field(default="", repr=False)  #: instead of user and password
    jwt: str = field(default="", repr=False)  #: the user's JWT
    seed: str = field(default="", repr=False)  #: seed of the nkey that signs what the server asks us to sign

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
        """Reads the files that belong to it.

        Args:
            user: User name.
            password: The user's password.
            token: Instead of user and password.
            nkey: File with the seed of an nkey.
            creds: File with a JWT and its seed.

        Raises:
            StoreUnreadableError: A file cannot be read or does not hold what it should.
        """
        jwt, seed = read_creds(creds) if creds else ("", read_nkey(nkey) if nkey else "")
        return cls(user or "", password or "", token or "", jwt, seed)

    def options(self, name: str, server: Server, info: dict[str, Any]) -> dict[str, object]:
        """Returns the options of CONNECT.

        Args:
            name: Of the connection.
            server: Where it goes.
            info: What the server said.

        Raises:
            LoginError: The server wants a signature but gave nothing to sign.
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
        """Returns the members of CONNECT that show that we have the key: `sig`, and `nkey` or `jwt`."""
        import nkeys  # type: ignore[import-untyped]

        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        try:
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            public = pair.public_key.decode()
        finally:
            pair.wipe()
        signed = {"jwt": self.jwt} if self.jwt else {"nkey": public}
        return signed | {"sig": signature}
