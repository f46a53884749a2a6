"""Authentication of clients (password, token, nkey or certificate), and their permissions.

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

from stantools.install_hints import install_command
from stantools.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.nats.nats_options import Authorization, Permissions, ResponsePermission, SubjectPermission, User

_BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
_USER_PREFIX: Final = 20 << 3
#: Types in distinguished names that have no name in RFC 4514 but are usually written with one.
_TYPES: Final = {"SERIALNUMBER": "2.5.4.5", "POSTALCODE": "2.5.4.17", "EMAILADDRESS": "1.2.840.113549.1.9.1"}
#: Number of verified passwords kept as keyed hashes.
_MAX_PROOFS: Final = 1024
#: Maximum number of waiting checks per user and address.
_MAX_WAITING: Final = 64
#: Number of subjects in a permit's cache, and their maximum length in bytes.
_CACHE_SUBJECTS: Final = 4096
_MAX_SUBJECT: Final = 256
_SERVER_PREFIX: Final = 13 << 3
_NONCE_BYTES: Final = 11
_VIOLATION: Final = "nats: Authorization Violation"
_MAPPING_HINT: Final = (
    " (with verify_and_map, `streaming { username: … }` must name one of the users, or its `tls { client_cert: … }` "
    "must be the certificate of one)"
)


class AuthorizationError(Exception):
    """A client or a part of this process is not allowed to connect."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""  #: public nkey
    signature: str = field(default="", repr=False)  #: signature of the nonce
    nonce: str = ""
    #: Names in its certificate, the best first, the subject's distinguished name last, if certificates are mapped to
    #: users.
    names: tuple[str, ...] | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any], nonce: str, names: tuple[str, ...] | None) -> ClientCredentials:
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
        return not (self.user or self.password or self.token or self.nkey or self.names)


@dataclass(frozen=True, slots=True)
class Identity:
    name: str = ""  #: for logs and views
    permit: Permit | None = None  #: permissions; None if unrestricted
    record: User | str | None = None  #: its entry in the configuration, compared after a reload


@dataclass(frozen=True, slots=True)
class Check:
    """A pending decision about credentials."""

    identity: Identity  #: identity after a positive decision
    decide: Callable[[], bool]  #: decides
    slow: bool = False  #: takes long (bcrypt), so not in the event loop


class Authenticator:
    """Decides who may connect.

    With `map_certificates`, certificates name the users. Raises `AuthorizationError` if there are hashed secrets and
    bcrypt is not installed.
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
                f"hashed passwords need bcrypt, which is not installed: {install_command('bcrypt')}"
            )

    @property
    def _secrets(self) -> list[str]:
        options = self.options
        return [options.password, options.token, *(user.password for user in options.users)]

    @property
    def plain_passwords(self) -> bool:
        """Whether a password or token is not hashed."""
        return any(secret and not is_bcrypt(secret) for secret in self._secrets)

    @property
    def anonymous(self) -> Identity | None:
        """The identity of clients without credentials; None if they are refused."""
        if not self.required:
            return Identity()
        entry = self._users.get(self.options.no_auth_user) if self.options.no_auth_user else None
        return entry[1] if entry else None

    def check(self, credentials: ClientCredentials) -> Check:
        options = self.options
        if not self.required:
            return Check(Identity(credentials.user), _accept)
        if self.map_certificates:
            entry = self._user_of(credentials.names or ())
            return _REFUSED if entry is None else Check(entry[1], _accept)
        if credentials.empty and self.anonymous is not None:
            return Check(self.anonymous, _accept)
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

    def part(self, credentials: ClientCredentials | None) -> tuple[Identity, ClientCredentials]:
        """Returns identity and credentials of a part of this process.

        Without `credentials`, it is `no_auth_user` or the single user, or has the token, of the configuration.
        Raises `AuthorizationError` if the credentials are not enough.
        """
        options, identity = self.options, self.anonymous
        if credentials is not None and self.required:
            check = self.check(credentials)
            identity = check.identity if check.decide() else None
        elif identity is None and not options.users and not self.map_certificates:
            credentials = ClientCredentials(user=options.user, password=options.password, token=options.token)
            identity = self.check(credentials).identity
        if identity is None:
            raise AuthorizationError(_VIOLATION + (_MAPPING_HINT if self.map_certificates else ""))
        return identity, credentials or ClientCredentials()

    def _user_of(self, names: Sequence[str]) -> tuple[User, Identity] | None:
        """Returns the user named by a certificate. A distinguished name in the same order has precedence."""
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

    def recheck(self, identity: Identity, credentials: ClientCredentials) -> Identity | None:
        """Returns the identity of a connected client after a reload; None if it must leave."""
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
    """Parses a distinguished name (RFC 4514): its parts in order, each with its types and values; empty if malformed.

    Different spellings (blanks, escapes, case of types) give the same result.
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
    # Users with the same permissions share a permit and its cache.
    permit = permits.get(id(permissions))
    if permit is None:
        permit = permits[id(permissions)] = Permit(permissions)
    return permit


@dataclass(slots=True, eq=False)
class _QueuedCheck:
    check: Check
    wanted: Callable[[], bool]
    decided: Callable[[bool], None]


class SlowChecks:
    """Slow checks (bcrypt) in a few threads.

    Wrong passwords without end must not keep other clients out. So each combination of user and address has a queue
    of its own, and the queues take turns. Within a queue the next check is random: the longer a queue is, the more
    of its clients have given up or are about to. A full queue takes no more clients; they time out.
    """

    def __init__(self) -> None:
        self._free_threads = max(1, (os.cpu_count() or 1) // 2)
        self._threads: ThreadPoolExecutor | None = None
        self._lines: OrderedDict[Hashable, list[_QueuedCheck]] = OrderedDict()
        self._running_checks: set[asyncio.Future[bool]] = set()

    def put(self, line: Hashable, check: Check, wanted: Callable[[], bool], decided: Callable[[bool], None]) -> None:
        """Queues a check.

        Args:
            line: The queue: user and address.
            check: The check.
            wanted: Returns whether the client still waits.
            decided: Gets the decision, later than this call; not called if the client has left.
        """
        waiting = self._lines.setdefault(line, [])
        if len(waiting) >= _MAX_WAITING:
            waiting[:] = [each for each in waiting if each.wanted()]
        if len(waiting) < _MAX_WAITING:
            waiting.append(_QueuedCheck(check, wanted, decided))
        self._next()

    def stop(self) -> None:
        """Drops all waiting checks. A running one ends in the background."""
        self._lines.clear()
        for work in self._running_checks:
            work.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        while self._free_threads and self._lines:
            line, waiting = self._lines.popitem(last=False)
            chosen = waiting.pop(random.randrange(len(waiting)))
            if waiting:
                self._lines[line] = waiting
            if not chosen.wanted():
                continue
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._free_threads, "passwords")
            self._free_threads -= 1
            work = asyncio.get_running_loop().run_in_executor(self._threads, chosen.check.decide)
            self._running_checks.add(work)
            work.add_done_callback(partial(self._done, chosen))

    def _done(self, chosen: _QueuedCheck, work: asyncio.Future[bool]) -> None:
        self._running_checks.discard(work)
        if work.cancelled():
            return
        passed = work.exception() is None and work.result()
        self._free_threads += 1
        self._next()
        if chosen.wanted():
            chosen.decided(passed)


def _secret_check(identity: Identity, stored: str, given: str) -> Check:
    if is_bcrypt(stored):
        proof = hmac.digest(_key, f"{stored}\0{given}".encode("utf-8", "surrogatepass"), "sha256")
        if proof in _proofs:
            _proofs.move_to_end(proof)
            return Check(identity, _accept)
        return Check(identity, lambda: _bcrypt(stored, given, proof), slow=True)
    return Check(identity, lambda: hmac.compare_digest(stored.encode(), given.encode()))


def is_bcrypt(secret: str) -> bool:
    return secret.startswith(_BCRYPT)


#: Keyed hashes of verified passwords: their users need not wait after clients with wrong passwords.
_proofs: Final[OrderedDict[bytes, None]] = OrderedDict()
_key: Final = os.urandom(32)


def _bcrypt(stored: str, given: str, proof: bytes) -> bool:
    import bcrypt

    password = given.encode()
    try:
        # bcrypt uses the first 72 bytes only.
        passed = bcrypt.checkpw(password[:72], stored.encode())
    except ValueError:
        return False
    if passed:
        _proofs[proof] = None
        while len(_proofs) > _MAX_PROOFS:
            _proofs.popitem(last=False)
    return passed


def signed(nkey: str, nonce: str, signature: str) -> bool:
    """Returns whether a nonce was signed with a user's nkey."""
    key = user_key(nkey)
    if key is None or not nonce:
        return False
    # Loaded only for nkeys.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        # Clients use either base64 alphabet, with or without padding.
        text = signature.rstrip("=").replace("+", "-").replace("/", "_")
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        Ed25519PublicKey.from_public_bytes(key).verify(raw, nonce.encode())
    except (ValueError, InvalidSignature):
        return False
    return True


def _accept() -> bool:
    return True


_REFUSED: Final = Check(Identity(), lambda: False)


class _PermissionRules:
    """Allowed and denied subjects. A subscribe rule can be limited to one queue group."""

    def __init__(self, permission: SubjectPermission, with_queues: bool) -> None:
        allow = None if permission.allow is None else [_rule(rule, with_queues) for rule in permission.allow]
        self.allow: list[tuple[bytes, bytes]] | None = allow
        self.deny = [_rule(rule, with_queues) for rule in permission.deny]

    def permit(self, subject: bytes, queue: bytes = b"") -> bool:
        # A pattern is looked up like a subject; its other matches are checked when messages are delivered.
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
    """The permissions of a user, shared by all of its connections."""

    def __init__(self, permissions: Permissions) -> None:
        publish = permissions.publish
        #: permission to publish to the reply subjects of received messages, if configured
        self.responses: ResponsePermission | None = permissions.responses
        self._publish = _PermissionRules(publish, with_queues=False)
        if permissions.responses is not None and publish.allow is None:
            # Only answers may be published.
            self._publish.allow = []
        self._subscribe = _PermissionRules(permissions.subscribe, with_queues=True)
        self.may_subscribe: Final = self._subscribe.permit
        self._remembered: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Returns whether a client may publish to a subject, apart from answers."""
        known = self._remembered.get(subject)
        if known is None:
            known = self._publish.permit(subject)
            if len(subject) <= _MAX_SUBJECT:
                if len(self._remembered) >= _CACHE_SUBJECTS:
                    self._remembered.clear()
                self._remembered[subject] = known
        return known

    def narrows(self, pattern: bytes) -> bool:
        """Returns whether an allowed pattern also matches denied subjects."""
        if subjects.is_literal(pattern):
            return False
        return any(not queue and subjects.overlap(denied, pattern) for denied, queue in self._subscribe.deny)

    def may_receive(self, subject: bytes) -> bool:
        return not _applies(self._subscribe.deny, subject, b"")


def user_key(nkey: str) -> bytes | None:
    """Returns the raw key of a public user nkey; None if the text is none."""
    try:
        body = base64.b32decode(nkey + "=" * (-len(nkey) % 8))
    except ValueError:
        return None
    sum_fits = binascii.crc_hqx(body[:-2], 0) == int.from_bytes(body[-2:], "little")
    return body[1:-2] if len(body) == 35 and body[0] == _USER_PREFIX and sum_fits else None


def server_id() -> str:
    """Returns a new server id, a public nkey: 56 characters starting with N."""
    body = bytes([_SERVER_PREFIX]) + secrets.token_bytes(32)
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def nonce() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode().rstrip("=")
