"""Encryption at rest: message data as a server with an encryption key stores it.

Facts: filestore.md sections 9 and appendix B.

    stored data | code u8: 1 AES-256-GCM, 2 ChaCha20-Poly1305 | nonce: 12 | ciphertext | tag: 16 |
    nonce       | random: 4, one per process and channel | counter: 8, big endian |

    master key  = SHA-256(key)
    channel key = SHA-256(zero bytes, as many as 33 + the length of the name || master key || "." || channel name)

A store does not record that it is encrypted, and one channel can hold plain and encrypted messages under both
ciphers; so every message is examined by itself. Only a successful decryption proves that it was encrypted.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stantools.errors import StantoolsError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

_CODE_SIZE = 1
_NONCE_SIZE = 12
_RANDOM_SIZE = 4
_TAG_SIZE = 16
_PREFIX_SIZE = _CODE_SIZE + _NONCE_SIZE

#: maximum lead of a nonce's counter over its sequence; each message that could not be stored consumed one
_MAX_COUNTER_LEAD = 1 << 16
#: Bytes examined after a nonce; the number of text bytes that rules out chance; and the number of messages whose byte
#: at one place is equal in all that rules it out.
_BODY_SIZE = 64
_TEXT_SIZE = 32
_ENOUGH = 4
#: bytes that encryption adds to a payload
OVERHEAD = _PREFIX_SIZE + _TAG_SIZE

Data = bytes | bytearray | memoryview


class Cipher(enum.IntEnum):
    AES = 1
    CHACHA = 2


_AUTHENTICATION_FAILED = {
    Cipher.AES: "cipher: message authentication failed",
    Cipher.CHACHA: "chacha20poly1305: message authentication failed",
}


class DecryptError(StantoolsError):
    """Stored data that the server could not decrypt; the message is the server's text."""


def cipher_named(name: str) -> Cipher:
    """Returns a cipher by its name in the server's option, in any case; UsageError if there is none."""
    try:
        return Cipher[name.upper()]
    except KeyError:
        raise UsageError(
            "encryption cipher not supported", f"the ciphers are {', '.join(Cipher.__members__)}"
        ) from None


def master_key(key: bytes) -> bytes:
    """Derives the master key from the server's key; UsageError if that is empty."""
    if not key:
        raise UsageError("encryption key required")
    return _sha256(key)


def channel_key(key: bytes, channel: bytes) -> bytes:
    """Derives the key of one channel from the server's key; UsageError if that is empty."""
    master = master_key(key)
    # The zeros are an accident of the server's code, and part of every key.
    return _sha256(bytes(33 + len(channel)) + master + b"." + channel)


def _sha256(data: bytes) -> bytes:
    from hashlib import sha256  # loaded here, as the ciphers below: most stores are not encrypted

    return sha256(data).digest()


def looks_encrypted(stored: Data, sequence: int) -> bool:
    """Returns whether the stored data of a message has the shape of encrypted data, which proves nothing.

    The counter of its nonce starts at the sequence after the channel's last one, and rises with each message that is
    not empty, so it hardly ever exceeds the message's own sequence.
    """
    if len(stored) <= OVERHEAD or stored[0] not in (Cipher.AES, Cipher.CHACHA):
        return False
    counter = int.from_bytes(stored[_CODE_SIZE + _RANDOM_SIZE : _PREFIX_SIZE], "big")
    return 0 < counter <= sequence + _MAX_COUNTER_LEAD


def may_be_encrypted(samples: Iterable[tuple[int, Data]]) -> bool:
    """Returns whether messages of one channel may be encrypted, as far as can be told without the key."""
    sealed = [bytes(data) for sequence, data in samples if looks_encrypted(data, sequence)]
    if not sealed:
        return False
    bodies = [data[_PREFIX_SIZE : _PREFIX_SIZE + _BODY_SIZE] + data[-_TAG_SIZE:] for data in sealed]
    if sum(map(len, bodies)) >= _TEXT_SIZE and all(body.isascii() for body in bodies):
        return False  # text
    if len(sealed) < _ENOUGH:
        return True
    columns = [
        *zip(*(body[:-_TAG_SIZE] for body in bodies), strict=False),
        *zip(*(b[-_TAG_SIZE:] for b in bodies), strict=True),
    ]
    return all(len(set(column)) > 1 for column in columns)


class DataCipher:
    """Encrypts and decrypts with one key of 32 bytes, for both ciphers.

    The first nonce has `counter`, which must exceed every counter used before with the same `random`: the first 4
    bytes of every nonce, chosen at random if not given.
    """

    def __init__(self, key: bytes, *, counter: int = 1, random: bytes | None = None) -> None:
        # loaded here: commands on stores without encryption start fast
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

        random = os.urandom(_RANDOM_SIZE) if random is None else random
        if len(random) != _RANDOM_SIZE or not 0 <= counter < 2**64:
            raise UsageError("the random part of a nonce has 4 bytes and its counter 64 bits")
        self._nonce = int.from_bytes(random, "big") << 64 | counter
        self._ciphers: dict[Cipher, AESGCM | ChaCha20Poly1305] = {
            Cipher.AES: AESGCM(key),
            Cipher.CHACHA: ChaCha20Poly1305(key),
        }
        self._refusal = InvalidTag

    def decrypt(self, stored: Data) -> bytes:
        """Returns the payload of stored data, as a server with encryption turned on does.

        Data that does not begin with the code of a cipher is returned unchanged: it was stored without encryption.
        Raises DecryptError if the key is wrong, the data is damaged, or it is plain and only looks encrypted.
        """
        if not len(stored) or stored[0] not in (Cipher.AES, Cipher.CHACHA):
            return bytes(stored)
        if len(stored) <= _PREFIX_SIZE:
            raise DecryptError(f"trying to decrypt data that is not (len={len(stored)})")
        cipher = Cipher(stored[0])
        nonce, sealed = bytes(stored[_CODE_SIZE:_PREFIX_SIZE]), bytes(stored[_PREFIX_SIZE:])
        try:
            return self._ciphers[cipher].decrypt(nonce, sealed, None)
        except self._refusal:
            raise DecryptError(
                _AUTHENTICATION_FAILED[cipher], "check the encryption key and the name of the channel"
            ) from None

    def encrypt(self, data: Data, cipher: Cipher) -> bytes:
        """Returns the stored form of a payload, and increments the nonce.

        Empty data stays empty and uses no nonce.
        """
        if not len(data):
            return b""
        nonce = self._nonce.to_bytes(_NONCE_SIZE, "big")
        self._nonce = (self._nonce + 1) % 2**96
        return bytes([cipher]) + nonce + self._ciphers[cipher].encrypt(nonce, bytes(data), None)


class ChannelCipher(DataCipher):
    """Encrypts and decrypts the messages of one channel with the server's key; UsageError if that is empty.

    For writing, nonces count from the sequence after `last_sequence`, the channel's last one.
    """

    def __init__(self, key: bytes, channel: bytes, *, last_sequence: int = 0, random: bytes | None = None) -> None:
        super().__init__(channel_key(key, channel), counter=(last_sequence + 1) % 2**64, random=random)


def raft_cipher(key: bytes) -> DataCipher:
    """Returns the cipher of a clustered node's Raft log, which uses the master key; UsageError if the key is empty."""
    return DataCipher(master_key(key))
