"""Files to log in with: nkey seeds and credentials files, read and checked before any server is asked.

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
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.migration.target.options import read_secret

_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED = re.compile(r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END USER NKEY SEED-+")


def read_nkey(path: Path) -> str:
    """Reads the seed of a user's nkey.

    Raises:
        StoreUnreadableError: The file cannot be read, or holds no such seed.
    """
    lines = _text(path).splitlines()
    seeds = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("#", "-"))]
    if len(seeds) != 1:
        raise StoreUnreadableError(f"{path}: holds no nkey seed: expected one line that begins with SU", _REMEDY)
    _check_seed(path, seeds[0])
    return seeds[0]


def read_creds(path: Path) -> str:
    """Reads a credentials file.

    Returns:
        Its two parts in the plainest form, as the client library reads it.

    Raises:
        StoreUnreadableError: The file cannot be read, or one of its parts is missing or malformed.
    """
    text = _text(path)
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if not jwt or not seed:
        missing = "user JWT" if not jwt else "nkey seed"
        raise StoreUnreadableError(f"{path}: is no credentials file: it holds no {missing}", _REMEDY)
    if jwt[1].count(".") != 2:
        raise StoreUnreadableError(f"{path}: its user JWT is malformed: expected three parts with dots", _REMEDY)
    _check_seed(path, seed[1])
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed[1]}\n------END USER NKEY SEED------\n"
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
