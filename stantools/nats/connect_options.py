"""Options for connecting to a server: their declarations, checks, and secrets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stantools.errors import UsageError
from stantools.nats.login import Login, NatsAddress
from stantools.options import Option, option
from stantools.secret import read_secret

#: variable that the official tools read the server from
SERVER_VARIABLE: Final = "NATS_URL"
DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
#: value instead of a URL: start an embedded server (see `stantools.nats.serverprocess`)
EMBEDDED: Final = "embedded"
DEFAULT_API_PREFIX: Final = "$JS.API"
_FILE = Option(help="", kind=Path, metavar="PATH")


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Options for connecting. None means not given."""

    servers: tuple[str, ...] = option(
        f"NATS server, such as nats://host:4222; several with commas, or repeated. [env: {SERVER_VARIABLE}]",
        "--server",
        default=(),
        metavar="URL",
        variable=SERVER_VARIABLE,
    )
    context: str | None = option("Take settings that are not given from this nats context.", metavar="NAME")
    user: str | None = option("User name.", metavar="NAME")
    password: str | None = field(default=None, repr=False)  #: the user's password
    token: str | None = field(default=None, repr=False)  #: used instead of user and password
    nkey: Path | None = _FILE.field(help="File with the seed of the user's nkey.")
    creds: Path | None = _FILE.field(help="The user's credentials file.")
    tls_ca: Path | None = _FILE.field(help="Certificates of the authorities to trust.")
    tls_cert: Path | None = _FILE.field(help="Client certificate.")
    tls_key: Path | None = _FILE.field(help="Key of the client certificate.")
    tls_insecure: bool = option("Do not check the server's certificate.", default=False)
    tls_hostname: str | None = option("The name in the server's certificate, if not the URL's.", metavar="NAME")
    tls_first: bool = option("The server expects TLS at once (handshake_first).", default=False)
    domain: str | None = option("JetStream domain.", "--js-domain", metavar="NAME")
    api_prefix: str | None = option("Subject prefix of the JetStream API.", "--js-api-prefix", metavar="PREFIX")
    inbox_prefix: str | None = option("Subject prefix of the inboxes for answers.", metavar="PREFIX")
    timeout: float = option(
        "How long to wait for a connection or an answer.  [default: 5]",
        default=5.0,
        kind=float,
        least=0,
        most=86400,
        above=True,
        quiet=True,
        metavar="SECONDS",
    )
    #: failed attempts to reconnect to a server after which it is given up, for at least a minute; None for no limit
    reconnect_attempts: int | None = 240

    def absolute(self) -> ConnectOptions:
        """Returns the same options with absolute paths, for use in another directory."""
        paths = {name: getattr(self, name) for name in ("nkey", "creds", "tls_ca", "tls_cert", "tls_key")}
        return replace(self, **{name: path.absolute() for name, path in paths.items() if path is not None})

    @property
    def embedded(self) -> bool:
        return self.servers == (EMBEDDED,)

    @property
    def prefix(self) -> str:
        if self.api_prefix:
            return self.api_prefix
        return f"$JS.{self.domain}.API" if self.domain else DEFAULT_API_PREFIX

    @property
    def wants_tls(self) -> bool:
        """Whether the connection must be encrypted: nothing may be sent to a server without TLS."""
        given = self.tls_ca or self.tls_cert or self.tls_insecure or self.tls_hostname or self.tls_first
        return bool(given) or any(server.startswith(("tls://", "wss://")) for server in self.servers)

    @property
    def login(self) -> Login:
        """The login; reads its files and raises StoreUnreadableError for an unusable one."""
        return Login.read(user=self.user, password=self.password, token=self.token, nkey=self.nkey, creds=self.creds)

    @property
    def has_credentials(self) -> bool:
        return any(value is not None for value in (self.user, self.token, self.nkey, self.creds, self.tls_cert))

    def checked(self) -> ConnectOptions:
        """Returns the options as `connection.connect` needs them: URLs complete, the user extracted from them."""
        if EMBEDDED in self.servers and not self.embedded:
            raise UsageError(
                f"the server {EMBEDDED} cannot be one of several",
                "give either it or the URLs of servers",
            )
        options = self if self.embedded else self._with_plain_servers()
        options._check_credentials()
        options._check_tls()
        for name, text in (
            ("JetStream domain", self.domain),
            ("JetStream API prefix", self.api_prefix),
            ("inbox prefix", self.inbox_prefix),
        ):
            _check_subject(name, text)
        if self.domain is not None and "." in self.domain:
            raise UsageError(f"the JetStream domain {self.domain!r} is invalid", "a domain is one word, without dots")
        if self.domain and self.api_prefix:
            raise UsageError("a JetStream domain and an API prefix exclude each other", "give one of them")
        if not 0 < self.timeout < 86400:
            raise UsageError(f"a timeout of {self.timeout} s makes no sense", "give a few seconds")
        if self.reconnect_attempts is not None and self.reconnect_attempts < 1:
            raise UsageError("reconnect_attempts must be at least 1", "give None for no limit")
        return options

    def _with_plain_servers(self) -> ConnectOptions:
        addresses = [NatsAddress.parse(text) for text in self.servers or (DEFAULT_SERVER,)]
        if len({address.web for address in addresses}) > 1:
            raise UsageError("servers by WebSocket and servers by TCP cannot be mixed", "give one kind")
        options = replace(self, servers=tuple(dict.fromkeys(address.url for address in addresses)))
        logins = {(address.user, address.password) for address in addresses if address.user is not None}
        if len(logins) > 1:
            raise UsageError(
                "the URLs of the servers hold different users",
                "give servers of one system, and the user once",
            )
        if not logins or self.has_credentials:
            return options
        [(user, password)] = logins
        if password is None:  # as in all clients: a name without a password in a URL is a token
            return replace(options, token=user)
        return replace(options, user=user, password=password)

    def _check_credentials(self) -> None:
        kinds = {
            "user and password": self.user is not None or self.password is not None,
            "a token": self.token is not None,
            "an nkey": self.nkey is not None,
            "a credentials file": self.creds is not None,
        }
        given = [kind for kind, there in kinds.items() if there]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} exclude each other", "give one way to log in")
        if (self.user is None) != (self.password is None):
            missing = "no password" if self.password is None else "no user"
            raise UsageError(f"there is {missing} for the login", "give both, or neither")

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "key of the client certificate" if self.tls_key is None else "client certificate"
            raise UsageError(f"the {missing} is missing", "give certificate and key")
        if self.tls_insecure and (self.tls_ca or self.tls_hostname):
            raise UsageError(
                "skipping the check of the server's certificate contradicts the options for that check",
                "omit one of them",
            )
        for path in (self.tls_ca, self.tls_cert, self.tls_key):
            if path is not None:
                read_secret(path, limit=1 << 24)


def split_servers(texts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Splits lists with commas, as users write them: `nats://a,nats://b`."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _check_subject(name: str, text: str | None) -> None:
    if text is None:
        return
    tokens = text.split(".")
    if not all(tokens) or any(c.isspace() or c in "*>" or not c.isprintable() for c in text):
        raise UsageError(
            f"the {name} {text!r} is not the prefix of a subject",
            "give words with dots between them, without blanks, * and >",
        )
