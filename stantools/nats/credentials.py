"""Files for login: nkey seeds, credentials files, certificates; read and checked before any connection.

Credentials file:

    -----BEGIN NATS USER JWT-----
    eyJ0eXAiOiJKV1Qi…
    ------END NATS USER JWT------
    (text)
    -----BEGIN USER NKEY SEED-----
    SUA…
    ------END USER NKEY SEED------
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import NamedTuple

from stantools.errors import StoreUnreadableError
from stantools.nats.pem import authority_problem, certificate_problem
from stantools.secret import read_secret

_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED = re.compile(r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END USER NKEY SEED-+")


class Credentials(NamedTuple):
    """The content of a credentials file: a JWT, and the seed of the key that proves its ownership."""

    jwt: str
    seed: str


def read_nkey(path: Path) -> str:
    """Reads the seed of a user's nkey; StoreUnreadableError if the file is unreadable, or holds no such seed."""
    lines = _text(path).splitlines()
    seeds = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("#", "-"))]
    if len(seeds) != 1:
        raise StoreUnreadableError(f"{path}: holds no nkey seed: expected one line that begins with SU", _REMEDY)
    _check_seed(path, seeds[0])
    return seeds[0]


def read_creds(path: Path) -> Credentials:
    """Reads a credentials file; StoreUnreadableError if it is unreadable, or a part is missing or malformed."""
    text = _text(path)
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if not jwt or not seed:
        missing = "user JWT" if not jwt else "nkey seed"
        raise StoreUnreadableError(f"{path}: is not a credentials file: it holds no {missing}", _REMEDY)
    if jwt[1].count(".") != 2:
        raise StoreUnreadableError(f"{path}: its user JWT is malformed: expected three parts with dots", _REMEDY)
    _check_seed(path, seed[1])
    return Credentials(jwt[1], seed[1])


def tls_context(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """Returns the TLS context of a client; without `ca`, the system's authorities are trusted.

    Raises StoreUnreadableError if a file holds no certificate or key, or they do not belong together.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
    except (OSError, ValueError) as problem:
        assert ca is not None
        raise _invalid_file(ca, "certificates of authorities", problem, authority_problem(ca)) from problem
    if cert and key:
        try:
            # An empty answer: a key with a passphrase would otherwise prompt on the terminal.
            context.load_cert_chain(cert, key, password=lambda: b"")
        except (OSError, ValueError) as problem:
            expected = f"a certificate that matches the key {key}"
            raise _invalid_file(cert, expected, problem, certificate_problem(cert, key)) from problem
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _invalid_file(path: Path, expected: str, problem: OSError | ValueError, known: str) -> StoreUnreadableError:
    if known and path.exists():
        return StoreUnreadableError(known, "check the files; a key must have no passphrase")
    reason = getattr(problem, "strerror", None) or getattr(problem, "reason", None) or str(problem)
    return StoreUnreadableError(
        f"{path}: expected {expected} in PEM form: {reason}",
        "check the files; a key must have no passphrase",
    )


_REMEDY = "give the file that the operator of the system made for the user"


def _text(path: Path) -> str:
    try:
        return read_secret(path).decode("ascii")
    except UnicodeDecodeError:
        raise StoreUnreadableError(f"{path}: holds neither an nkey seed nor credentials", _REMEDY) from None


def _check_seed(path: Path, seed: str) -> None:
    import nkeys  # type: ignore[import-untyped]

    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        kind = pair.public_key[:1]
        pair.wipe()
    except (nkeys.NkeysError, ValueError):
        raise StoreUnreadableError(f"{path}: its nkey seed is malformed", _REMEDY) from None
    if kind != b"U":
        raise StoreUnreadableError(f"{path}: its nkey is not one of a user", _REMEDY)
