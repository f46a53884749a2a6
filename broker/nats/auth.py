"""Who a client is: user and password, token, nkey, or certificate (operations sections 8 and 15)."""

from __future__ import annotations

import base64
import hmac
import importlib.util
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.nats.identity import decode_nkey
from broker.nats.permissions import Permit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.nats.options import Authorization, Permissions, User

_BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
_USER_PREFIX: Final = 20 << 3
#: Types of distinguished names that have no name in RFC 4514 but are written with one.
_TYPES: Final = {"SERIALNUMBER": "2.5.4.5", "POSTALCODE": "2.5.4.17", "EMAILADDRESS": "1.2.840.113549.1.9.1"}


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
        decide: Tells whether it is.
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


def _secret_check(identity: Identity, stored: str, given: str) -> Check:
    if is_bcrypt(stored):
        return Check(identity, lambda: _bcrypt(stored, given), slow=True)
    return Check(identity, lambda: hmac.compare_digest(stored.encode(), given.encode()))


def is_bcrypt(secret: str) -> bool:
    """Tells whether a configured secret is a bcrypt hash."""
    return secret.startswith(_BCRYPT)


def _bcrypt(stored: str, given: str) -> bool:
    import bcrypt

    password = given.encode()
    try:
        # More than 72 bytes never counted.
        return bcrypt.checkpw(password[:72], stored.encode())
    except ValueError:
        return False


def signed(nkey: str, nonce: str, signature: str) -> bool:
    """Tells whether a nonce was signed with a user's nkey."""
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
