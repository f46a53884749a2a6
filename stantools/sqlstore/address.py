"""Where a database is: a URL, or the text that a server has as -sql_source (sql-stores.md section 1)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from stantools.errors import UsageError

MYSQL: Final = "mysql"
POSTGRES: Final = "postgres"
DRIVERS: Final = (MYSQL, POSTGRES)
_SCHEMES: Final = {"mysql": MYSQL, "mariadb": MYSQL, "postgres": POSTGRES, "postgresql": POSTGRES}
_PORTS: Final = {MYSQL: 3306, POSTGRES: 5432}
_GO_MYSQL: Final = re.compile(
    r"(?:(?P<user>[^:@]*)(?::(?P<password>.*))?@)?(?P<net>tcp|unix)\((?P<place>[^)]*)\)/(?P<name>[^?]*)(?:\?(?P<more>.*))?",
    re.DOTALL,
)
_KEYWORD: Final = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
_IS_KEYWORDS: Final = re.compile(r"\s*(?:dbname|host|user|password|port|sslmode)\s*=")
#: parameters of the server's own wrapper, which libraries of databases do not know
_OF_SERVER: Final = frozenset(("readtimeout", "writetimeout"))


@dataclass(frozen=True)
class DatabaseAddress:
    driver: str  #: one of DRIVERS
    name: str  #: name of the database
    host: str = ""  #: "" for the driver's default
    port: int = 0
    socket: str = ""  #: path of a socket
    user: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""  #: schema of PostgreSQL with the tables; "" for the search path
    parameters: tuple[tuple[str, str], ...] = ()  #: further parameters of the driver

    @property
    def shown(self) -> str:
        """The URL without the password."""
        user = f"{quote(self.user)}@" if self.user else ""
        host = self.host or "localhost"
        port = f":{self.port}" if self.port and self.port != _PORTS[self.driver] else ""
        schema = f"?schema={quote(self.schema)}" if self.schema else ""
        return f"{self.driver}://{user}{host}{port}/{quote(self.name)}{schema}"


def is_address(text: str) -> bool:
    """Returns whether a text names a database; a URL may have lost a slash, as a path does."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in _SCHEMES and rest.startswith("/"):
        return True
    return _GO_MYSQL.fullmatch(text) is not None or _IS_KEYWORDS.match(text) is not None


def without_password(text: str) -> str:
    """Returns a text for messages: of a database its URL without the password, any other as it is."""
    if not is_address(text):
        return text
    try:
        return parse_address(text).shown
    except UsageError:
        return f"{text.partition(':')[0]}://…"


def parse_address(text: str, driver: str | None = None) -> DatabaseAddress:
    """Raises UsageError, without the password in its text."""
    scheme = text.partition(":")[0].lower()
    if scheme in _SCHEMES and text[len(scheme) :].startswith(":/"):
        found = _of_url(_SCHEMES[scheme], f"x://{text[len(scheme) + 1 :].lstrip('/')}")
    elif words := _GO_MYSQL.fullmatch(text):
        found = _of_go(words)
    elif _IS_KEYWORDS.match(text):
        found = _of_keywords(text)
    else:
        raise UsageError(
            "the database's address is neither a URL nor a text of -sql_source",
            "give it as mysql://USER@HOST:PORT/DATABASE or postgres://USER@HOST:PORT/DATABASE",
        )
    if driver not in (None, found.driver):
        raise UsageError(f"{found.shown}: is an address of {found.driver}, not of {driver}", "leave --sql-driver out")
    return found


def _of_url(driver: str, text: str) -> DatabaseAddress:
    login, at, place = text.removeprefix("x://").rpartition("@")
    parts = urlsplit(f"x://{place}")
    user, _, password = login.partition(":") if at else ("", "", "")
    try:
        port = parts.port or 0
    except ValueError:
        raise UsageError(
            "the port in the database's URL is not a number up to 65535", "write it as mysql://USER@HOST:PORT/DATABASE"
        ) from None
    more = dict(parse_qsl(parts.query))
    schema = more.pop("schema", "")
    host = unquote(parts.hostname or "")
    socket = more.pop("socket", "") or (more.pop("host", "") if more.get("host", "").startswith("/") else "")
    parameters = tuple((key, value) for key, value in more.items() if key.lower() not in _OF_SERVER)
    name = unquote(parts.path.lstrip("/"))
    return DatabaseAddress(driver, name, host, port, socket, unquote(user), unquote(password), schema, parameters)


def _of_go(found: re.Match[str]) -> DatabaseAddress:
    place, name = found["place"], unquote(found["name"])
    login = found["user"] or "", found["password"] or ""
    if found["net"] == "unix":
        return DatabaseAddress(MYSQL, name, socket=place, user=login[0], password=login[1])
    host, _, port = place.partition(":")
    return DatabaseAddress(MYSQL, name, host, int(port) if port.isdigit() else 0, user=login[0], password=login[1])


def _of_keywords(text: str) -> DatabaseAddress:
    found = {key.lower(): _unquoted(value) for key, value in _KEYWORD.findall(text)}
    host = found.pop("host", "")
    known = ("dbname", "port", "user", "password")
    parameters = tuple((key, value) for key, value in found.items() if key not in known and key not in _OF_SERVER)
    port = found.get("port", "")
    return DatabaseAddress(
        POSTGRES,
        found.get("dbname", ""),
        "" if host.startswith("/") else host,
        int(port) if port.isdigit() else 0,
        host if host.startswith("/") else "",
        found.get("user", ""),
        found.get("password", ""),
        parameters=parameters,
    )


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith("'") else value
