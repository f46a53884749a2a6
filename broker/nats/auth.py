"""Who a client is (user and password, token, nkey, or certificate), and what it may publish and subscribe to.

Facts: server-operations.md sections 8 and 15.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import importlib.util
import os
import random
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stantools.installing import install_command
from stantools.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.nats.options import Authorization, Permissions, ResponsePermission, SubjectPermission, User

_BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
_USER_PREFIX: Final = 20 << 3
#: Types of distinguished names that have no name in RFC 4514 but are written with one.
_TYPES: Final = {"SERIALNUMBER": "2.5.4.5", "POSTALCODE": "2.5.4.17", "EMAILADDRESS": "1.2.840.113549.1.9.1"}
#: Hashed passwords that were found right, and are remembered as keyed hashes.
_PROVEN: Final = 1024
#: Checks that may wait for each who says he is the same from the same address.
_MOST_WAITING: Final = 64
#: How many subjects a permit remembers, and how long (bytes) they may be.
_REMEMBERED: Final = 4096
_LONGEST: Final = 256
_SERVER_PREFIX: Final = 13 << 3
_NONCE_BYTES: Final = 11
_VIOLATION: Final = "nats: Authorization Violation"
_UNNAMED: Final = (
    " (with verify_and_map, `streaming { username: … }` has to name one of the users, or its `tls { client_cert: … }` "
    "has to be the certificate of one)"
)


class AuthorizationError(Exception):
    """Somebody who may not connect."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client says about itself."""

    user: str = ""  #: user name
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""  #: public nkey
    signature: str = field(default="", repr=False)  #: signature of the nonce
    nonce: str = ""
    #: Who it is by its certificate, best first, the subject's distinguished name last, if certificates are mapped to
    #: users.
    names: tuple[str, ...] | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any], nonce: str, names: tuple[str, ...] | None) -> Credentials:
        """Returns what the options of a CONNECT say."""
        return cls(
            options.get("user", ""),
            options.get("pass", ""),
            options.get("auth_token", ""),
            options.get("nkey", ""),
            options.get("sig", ""),
            nonce,
            names,
        )

    @property
    def empty(self) -> bool:
        """Nothing was said."""
        return not (self.user or self.password or self.token or self.nkey or self.names)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is."""

    name: str = ""  #: for logs and views
    permit: Permit | None = None  #: what it may do; None for all
    record: User | str | None = None  #: the entry of the configuration, to be compared after a reload


@dataclass(frozen=True, slots=True)
class Check:
    """A decision to be made."""

    identity: Identity  #: who it would be
    decide: Callable[[], bool]  #: returns whether it is
    slow: bool = False  #: that takes long (bcrypt); better not in the event loop


class Authenticator:
    """Knows who may connect.

    Args:
        options: Users and secrets.
        map_certificates: Clients are the users that their certificates name.

    Raises:
        AuthorizationError: Secrets are hashed, and what checks them is not installed.
    """

    def __init__(self, options: Authorization, *, map_certificates: bool = False) -> None:
        self.options = options
        self.map_certificates = map_certificates
        self.required = options.required or map_certificates
        self.nkeys = any(user.nkey for user in options.users)
        self._users: dict[str, tuple[User, Identity]] = {}
        self._keys: dict[str, tuple[User, Identity]] = {}
        permits: dict[int, Permit] = {}
        for user in options.users:
            permissions = user.permissions or options.default_permissions
            identity = Identity(user.nkey or user.name, _permit(permissions, permits), user)
            (self._keys if user.nkey else self._users)[user.nkey or user.name] = (user, identity)
        if any(map(is_bcrypt, self._secrets)) and importlib.util.find_spec("bcrypt") is None:
            raise AuthorizationError(
                f"bcrypt is not installed, which hashed passwords need: {install_command('bcrypt')}"
            )

    @property
    def _secrets(self) -> list[str]:
        options = self.options
        return [options.password, options.token, *(user.password for user in options.users)]

    @property
    def plain_passwords(self) -> bool:
        """Whether some password or token is not hashed."""
        return any(secret and not is_bcrypt(secret) for secret in self._secrets)

    @property
    def anonymous(self) -> Identity | None:
        """Who clients without credentials are; None if there may be none."""
        if not self.required:
            return Identity()
        entry = self._users.get(self.options.no_auth_user) if self.options.no_auth_user else None
        return entry[1] if entry else None

    def check(self, credentials: Credentials) -> Check:
        """Returns what is to be checked."""
        options = self.options
        if not self.required:
            return Check(Identity(credentials.user), _yes)
        if self.map_certificates:
            entry = self._named(credentials.names or ())
            return _REFUSED if entry is None else Check(entry[1], _yes)
        if credentials.empty and self.anonymous is not None:
            return Check(self.anonymous, _yes)
        if credentials.nkey:
            entry = self._keys.get(credentials.nkey)
            if entry is None:
                return _REFUSED
            return Check(entry[1], lambda: signed(credentials.nkey, credentials.nonce, credentials.signature))
        if options.users:
            entry = self._users.get(credentials.user)
            if entry is None:
                return _REFUSED
            return _secret_check(entry[1], entry[0].password, credentials.password)
        if options.token:
            return _secret_check(Identity("", None, options.token), options.token, credentials.token)
        if options.user != credentials.user:
            return _REFUSED
        record = f"{options.user}\0{options.password}"
        return _secret_check(Identity(options.user, None, record), options.password, credentials.password)

    def part(self, credentials: Credentials | None) -> tuple[Identity, Credentials]:
        """Returns who a part of this process is, and by which credentials.

        Args:
            credentials: Who it says that it is. Without them it is `no_auth_user`, or the single user, or has the
                token, of the configuration.

        Raises:
            AuthorizationError: Those credentials are not enough.
        """
        options, identity = self.options, self.anonymous
        if credentials is not None and self.required:
            check = self.check(credentials)
            identity = check.identity if check.decide() else None
        elif identity is None and not options.users and not self.map_certificates:
            credentials = Credentials(user=options.user, password=options.password, token=options.token)
            identity = self.check(credentials).identity
        if identity is None:
            raise AuthorizationError(_VIOLATION + (_UNNAMED if self.map_certificates else ""))
        return identity, credentials or Credentials()

    def _named(self, names: Sequence[str]) -> tuple[User, Identity] | None:
        """Returns the user that a certificate names. Of distinguished names, the one in the same order comes first."""
        for name in names:
            if name in self._users:
                return self._users[name]
        subject = distinguished_name(names[-1]) if names else ()
        if not subject:
            return None
        users = [(distinguished_name(name), entry) for name, entry in self._users.items()]
        for found, entry in users:
            if found == subject:
                return entry
        for found, entry in users:
            if sorted(found) == sorted(subject):
                return entry
        return None

    def still(self, identity: Identity, credentials: Credentials) -> Identity | None:
        """Returns who a client is after a reload that it has lived through; None if it may not stay."""
        if not self.required:
            return Identity(identity.name)
        found = self.check(credentials)
        before, after = identity.record, found.identity.record
        if found is _REFUSED:
            return None
        if _secret(before) == _secret(after) and before is not None:
            return found.identity
        return found.identity if not found.slow and not credentials.nkey and found.decide() else None


def distinguished_name(text: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Takes a distinguished name apart (RFC 4514): its parts in order, each with its types and values.

    What may be written in several ways comes out as one: blanks, escapes, the case of types. Empty if it is none.
    """
    parts = []
    for part in _split(",", text):
        pairs = []
        for pair in _split("+", part):
            kind, equals, value = pair.partition("=")
            if not equals or not kind.strip():
                return ()
            kind = kind.strip().upper()
            pairs.append((_TYPES.get(kind, kind), _unescaped(value.strip())))
        parts.append(tuple(sorted(pairs)))
    return tuple(parts)


def _split(separator: str, text: str) -> list[str]:
    return re.findall(rf"(?:^|\{separator})((?:\\.|[^\{separator}\\])*)", text, re.DOTALL)


def _unescaped(value: str) -> str:
    raw = re.sub(
        rb"\\([0-9A-Fa-f]{2}|.)",
        lambda match: bytes.fromhex(match[1].decode()) if len(match[1]) == 2 else match[1],
        value.encode(),
        flags=re.DOTALL,
    )
    return raw.decode(errors="replace")


def _secret(record: User | str | None) -> object:
    if record is None or isinstance(record, str):
        return record
    return (record.name, record.password, record.nkey)


def _permit(permissions: Permissions | None, permits: dict[int, Permit]) -> Permit | None:
    if permissions is None:
        return None
    # Users with the same permissions share what is remembered about them.
    permit = permits.get(id(permissions))
    if permit is None:
        permit = permits[id(permissions)] = Permit(permissions)
    return permit


@dataclass(slots=True, eq=False)
class _Waiting:
    check: Check
    wanted: Callable[[], bool]
    decided: Callable[[bool], None]


class SlowChecks:
    """Checks that take long (bcrypt), in threads of their own, few at a time.

    Whoever sends wrong passwords without end must not keep others out. So those who say they are the same user from the
    same address stand in one line, and all lines take turns. In a line anybody may be next: the longer it is, the more
    of those in it have given up, or are about to. Beyond its length it takes nobody; they time out.
    """

    def __init__(self) -> None:
        self._free = max(1, (os.cpu_count() or 1) // 2)
        self._threads: ThreadPoolExecutor | None = None
        self._lines: OrderedDict[Hashable, list[_Waiting]] = OrderedDict()
        self._under_way: set[asyncio.Future[bool]] = set()

    def put(self, line: Hashable, check: Check, wanted: Callable[[], bool], decided: Callable[[bool], None]) -> None:
        """Makes a check when it is its turn.

        Args:
            line: Who asks.
            check: The check.
            wanted: Returns whether anybody still waits for it.
            decided: Gets the decision, later than this call; not called if nobody waits any more.
        """
        waiting = self._lines.setdefault(line, [])
        if len(waiting) >= _MOST_WAITING:
            waiting[:] = [each for each in waiting if each.wanted()]
        if len(waiting) < _MOST_WAITING:
            waiting.append(_Waiting(check, wanted, decided))
        self._next()

    def stop(self) -> None:
        """Makes no more checks. The one that a thread is about ends in the background."""
        self._lines.clear()
        for work in self._under_way:
            work.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        while self._free and self._lines:
            line, waiting = self._lines.popitem(last=False)
            chosen = waiting.pop(random.randrange(len(waiting)))
            if waiting:
                self._lines[line] = waiting
            if not chosen.wanted():
                continue
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._free, "passwords")
            self._free -= 1
            work = asyncio.get_running_loop().run_in_executor(self._threads, chosen.check.decide)
            self._under_way.add(work)
            work.add_done_callback(partial(self._done, chosen))

    def _done(self, chosen: _Waiting, work: asyncio.Future[bool]) -> None:
        self._under_way.discard(work)
        if work.cancelled():
            return
        passed = work.exception() is None and work.result()
        self._free += 1
        self._next()
        if chosen.wanted():
            chosen.decided(passed)


def _secret_check(identity: Identity, stored: str, given: str) -> Check:
    if is_bcrypt(stored):
        proof = _proof(stored, given)
        if proof in _proven:
            _proven.move_to_end(proof)
            return Check(identity, _yes)
        return Check(identity, lambda: _bcrypt(stored, given, proof), slow=True)
    return Check(identity, lambda: hmac.compare_digest(stored.encode(), given.encode()))


def is_bcrypt(secret: str) -> bool:
    """Returns whether a configured secret is a bcrypt hash."""
    return secret.startswith(_BCRYPT)


#: Keyed hashes of what was found right: who comes again does not have to wait behind those who guess.
_proven: Final[OrderedDict[bytes, None]] = OrderedDict()
_key: Final = os.urandom(32)


def _proof(stored: str, given: str) -> bytes:
    return hmac.digest(_key, f"{stored}\0{given}".encode("utf-8", "surrogatepass"), "sha256")


def _bcrypt(stored: str, given: str, proof: bytes) -> bool:
    import bcrypt

    password = given.encode()
    try:
        # More than 72 bytes never counted.
        passed = bcrypt.checkpw(password[:72], stored.encode())
    except ValueError:
        return False
    if passed:
        _proven[proof] = None
        while len(_proven) > _PROVEN:
            _proven.popitem(last=False)
    return passed


def signed(nkey: str, nonce: str, signature: str) -> bool:
    """Returns whether a nonce was signed with a user's nkey."""
    key = user_key(nkey)
    if key is None or not nonce:
        return False
    # Loaded only where there are nkeys.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        # Clients encode with either alphabet, with or without padding.
        text = signature.rstrip("=").replace("+", "-").replace("/", "_")
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        Ed25519PublicKey.from_public_bytes(key).verify(raw, nonce.encode())
    except (ValueError, InvalidSignature):
        return False
    return True


def _yes() -> bool:
    return True


_REFUSED: Final = Check(Identity(), lambda: False)


class _Rules:
    """Allowed and denied subjects. Subscribe rules can hold for one queue group only."""

    def __init__(self, permission: SubjectPermission, with_queues: bool) -> None:
        allow = None if permission.allow is None else [_rule(rule, with_queues) for rule in permission.allow]
        self.allow: list[tuple[bytes, bytes]] | None = allow
        self.deny = [_rule(rule, with_queues) for rule in permission.deny]

    def permit(self, subject: bytes, queue: bytes = b"") -> bool:
        # A pattern that is subscribed to is looked up as if it were a subject: what it could match beyond is
        # checked when messages are delivered.
        if self.allow is not None and not _applies(self.allow, subject, queue):
            return False
        return not _applies(self.deny, subject, queue)


def _rule(rule: bytes, with_queues: bool) -> tuple[bytes, bytes]:
    words = rule.split()
    if with_queues and len(words) == 2:
        return words[0], words[1]
    return rule.strip(), b""


def _applies(rules: Iterable[tuple[bytes, bytes]], subject: bytes, queue: bytes) -> bool:
    for pattern, wanted in rules:
        if wanted and (not queue or not subjects.matches(wanted, queue)):
            continue
        if subjects.matches(pattern, subject):
            return True
    return False


class Permit:
    """What one user may do. Shared by all of its connections."""

    def __init__(self, permissions: Permissions) -> None:
        publish = permissions.publish
        #: What may be published to reply subjects of messages received; None for nothing in particular.
        self.responses: ResponsePermission | None = permissions.responses
        self._publish = _Rules(publish, with_queues=False)
        if permissions.responses is not None and publish.allow is None:
            # Nothing but answers may be published.
            self._publish.allow = []
        self._subscribe = _Rules(permissions.subscribe, with_queues=True)
        self._remembered: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Returns whether messages may be published to a subject, answers apart."""
        known = self._remembered.get(subject)
        if known is None:
            known = self._publish.permit(subject)
            if len(subject) <= _LONGEST:
                if len(self._remembered) >= _REMEMBERED:
                    self._remembered.clear()
                self._remembered[subject] = known
        return known

    def may_subscribe(self, pattern: bytes, queue: bytes = b"") -> bool:
        """Returns whether a subscription is allowed."""
        return self._subscribe.permit(pattern, queue)

    def narrows(self, pattern: bytes) -> bool:
        """Returns whether an allowed pattern also matches subjects that are denied."""
        if subjects.is_literal(pattern):
            return False
        return any(not queue and subjects.overlap(denied, pattern) for denied, queue in self._subscribe.deny)

    def may_receive(self, subject: bytes) -> bool:
        """Returns whether a message that an allowed pattern matches may be delivered."""
        return not _applies(self._subscribe.deny, subject, b"")


def user_key(nkey: str) -> bytes | None:
    """Returns the key of a user's public nkey; None if the text is none."""
    try:
        body = base64.b32decode(nkey + "=" * (-len(nkey) % 8))
    except ValueError:
        return None
    sum_fits = binascii.crc_hqx(body[:-2], 0) == int.from_bytes(body[-2:], "little")
    return body[1:-2] if len(body) == 35 and body[0] == _USER_PREFIX and sum_fits else None


def server_id() -> str:
    """Returns a new server id, a public nkey: 56 characters beginning with N."""
    body = bytes([_SERVER_PREFIX]) + secrets.token_bytes(32)
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def nonce() -> str:
    """Returns what a client has to sign."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode().rstrip("=")
