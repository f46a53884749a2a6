"""Encryption at rest of a nats-server's stream files (jetstream-store.md section 9).

Every stream, block and consumer has a random seed of 32 bytes. Its key file is the seed, sealed with a key that follows
from the server's key, the account and a context:

    key of the key file | HMAC-SHA256(server key, account || context)
    key file            | nonce || sealed seed: 72 bytes with XChaCha20-Poly1305, 64 with AES-256-GCM and a nonce of 16
    meta.inf, o.dat,
    body of index.db    | nonce || sealed data, with the seed as key
    block               | XChaCha20 or AES-256-CTR from byte 0 on; key: the seed, nonce: that of the block's key file

A block is not authenticated: a flipped byte of it is a flipped byte of the plain text.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stantools.streamfiles.layout import ArchiveError

_SEED_SIZE: Final = 32
_TAG_SIZE: Final = 16
_CONSTANTS: Final = struct.unpack("<4I", b"expand 32-byte k")
_WORD: Final = 0xFFFFFFFF


class StreamCipher(enum.Enum):
    CHACHA = "chacha"
    AES = "aes"


_NONCE_SIZES: Final = {StreamCipher.CHACHA: 24, StreamCipher.AES: 16}
#: the cipher of a key file, by its size
CIPHER_OF_SIZE: Final = {size + _SEED_SIZE + _TAG_SIZE: cipher for cipher, size in _NONCE_SIZES.items()}


@dataclass(frozen=True, slots=True)
class AssetKey:
    """The seed of a stream, a block or a consumer, and the nonce of its key file."""

    cipher: StreamCipher
    seed: bytes
    nonce: bytes
    previous: bool = False  #: sealed with the server's previous key

    def unseal(self, data: bytes) -> bytes:
        """Returns sealed data in the clear; ArchiveError if they are damaged."""
        return _open(self.cipher, self.seed, data)

    def decrypt_block(self, data: memoryview | bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if self.cipher is StreamCipher.AES:
            return Cipher(algorithms.AES(self.seed), modes.CTR(self.nonce)).decryptor().update(data)
        nonce = bytes(8) + self.nonce[16:]
        return Cipher(algorithms.ChaCha20(_subkey(self.seed, self.nonce), nonce), None).decryptor().update(data)


def _subkey(key: bytes, nonce: bytes) -> bytes:
    """HChaCha20: a block of the key stream without the final addition of the state."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    block = Cipher(algorithms.ChaCha20(key, nonce[:16]), None).encryptor().update(bytes(64))
    words = struct.unpack("<16I", block)
    added = (*_CONSTANTS, *struct.unpack("<4I", nonce[:16]))
    kept = (*words[:4], *words[12:])
    return struct.pack("<8I", *((word - addend) & _WORD for word, addend in zip(kept, added, strict=True)))


def _open(cipher: StreamCipher, key: bytes, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

    size = _NONCE_SIZES[cipher]
    nonce, sealed = data[:size], data[size:]
    if len(sealed) < _TAG_SIZE:
        raise ArchiveError(f"it has {len(data)} bytes, too few for sealed data")
    try:
        if cipher is StreamCipher.AES:
            return AESGCM(key).decrypt(nonce, sealed, None)
        return ChaCha20Poly1305(_subkey(key, nonce)).decrypt(bytes(4) + nonce[16:], sealed, None)
    except InvalidTag:
        raise ArchiveError("it cannot be decrypted: the key is another one, or it is damaged") from None


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The keys of a server for one account: the present one first, then the previous one."""

    keys: Sequence[bytes]
    account: str  #: for the files of a Raft group, the name of the group

    def open(self, key_file: bytes, context: str) -> AssetKey:
        """Returns the seed in a key file, whose size tells the cipher; ArchiveError if no key opens it."""
        cipher = CIPHER_OF_SIZE.get(len(key_file))
        if cipher is None:
            raise ArchiveError(f"it has {len(key_file)} bytes, expected {' or '.join(map(str, CIPHER_OF_SIZE))}")
        info = f"{self.account}{context}".encode("utf-8", "surrogateescape")
        for number, key in enumerate(self.keys):
            try:
                seed = _open(cipher, hmac.new(key, info, hashlib.sha256).digest(), key_file)
            except ArchiveError:
                continue
            return AssetKey(cipher, seed, key_file[: _NONCE_SIZES[cipher]], bool(number))
        raise ArchiveError("it cannot be opened: the server's key or the account is another one, or it is damaged")
