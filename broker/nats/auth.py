"""Who a client is: user and password, token, nkey, or certificate (server-operations.md sections 8 and 15)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import importlib.util
import os
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.nats.identity import decode_nkey
from broker.nats.permissions import Permit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.nats.options import Authorization, Permissions, User

_BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
_USER_PREFIX: Final = 20 << 3
#: Types of distinguished names that have no name in RFC 4514 but are written with one.
_TYPES: Final = {"SERIALNUMBER": "2.5.4.5", "POSTALCODE": "2.5.4.17", "EMAILADDRESS": "1.2.840.113549.1.9.1"}
#: Hashed passwords that were found right, and are remembered as keyed hashes.
_PROVEN: Final = 1024
#: Checks that may wait for each who says he is the same from the same address.
_MOST_WAITING: Final = 64


class AuthorizationError(Exception):
    """Somebody who may not connect."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client says about itself.

    Attributes:
        user: User name.
        password: Password.
        token: Token.
        nkey: Public nkey.
        signature: Signature of the nonce.
        nonce: The nonce.
        names: Who it is by its certificate, best first, the subject's distinguished name last, if certificates are
            mapped to users.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""
    signature: str = field(default="", repr=False)
    nonce: str = ""
    names: tuple[str, ...] | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any], nonce: str, names: tuple[str, ...] | None) -> Credentials:
        """Returns what stands in the options of a CONNECT."""
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
    """Who a client is.

    Attributes:
        name: For logs and views.
        permit: What it may do; None for all.
        record: The entry of the configuration, to be compared after a reload.
    """

    name: str = ""
    permit: Permit | None = None
    record: User | str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A decision to be made.

    Attributes:
        identity: Who it would be.
        decide: Returns whether it is.
        slow: That takes long (bcrypt); better not in the event loop.
    """

    identity: Identity
    decide: Callable[[], bool]
    slow: bool = False


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
            raise AuthorizationError("bcrypt is not installed, which hashed passwords need (extra `broker`)")

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
    decoded = decode_nkey(nkey)
    if decoded is None or decoded[0] != _USER_PREFIX or not nonce:
        return False
    # Loaded only where there are nkeys.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        # Clients encode with either alphabet, with or without padding.
        text = signature.rstrip("=").replace("+", "-").replace("/", "_")
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        Ed25519PublicKey.from_public_bytes(decoded[1]).verify(raw, nonce.encode())
    except (ValueError, InvalidSignature):
        return False
    return True


def _yes() -> bool:
    return True


_REFUSED: Final = Check(Identity(), lambda: False)
