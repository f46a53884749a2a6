"""Names that servers and clients make up: server ids (public nkeys), nonces, inboxes."""

from __future__ import annotations

import base64
import random
import secrets
from typing import Final

_ALPHABET: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SERVER_PREFIX: Final = 13 << 3
_NONCE_BYTES: Final = 11


def crc16(data: bytes) -> int:
    """Returns the checksum of nkeys: CRC-16/XMODEM."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def encode_nkey(prefix: int, raw: bytes) -> str:
    """Returns the text form of a public nkey."""
    body = bytes([prefix]) + raw
    return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")


def decode_nkey(text: str) -> tuple[int, bytes] | None:
    """Returns prefix and raw bytes of a public nkey; None if the text is not one."""
    try:
        body = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return None
    if len(body) != 35 or crc16(body[:-2]) != int.from_bytes(body[-2:], "little"):
        return None
    return body[0], body[1:-2]


def server_id() -> str:
    """Returns a new server id: 56 characters beginning with N."""
    return encode_nkey(_SERVER_PREFIX, secrets.token_bytes(32))


def nonce() -> str:
    """Returns what a client has to sign."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode().rstrip("=")


def token(size: int) -> bytes:
    """Returns letters and digits drawn at random, for inboxes."""
    return bytes(random.SystemRandom().choices(_ALPHABET, k=size))
