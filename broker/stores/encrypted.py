"""Encryption at rest around any store: message data is encrypted before it is stored (filestore.md section 9).

Blocks are decoded and encoded again in both directions, which costs a few microseconds per message.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final

from broker.log import FailedLookups
from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import EMPTY, block_of, decoded
from broker.stores.interface import ChannelStore, MessageStore, Recovered, StateStore, StorageError
from broker.stores.store_options import EncryptionOptions
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.encryption import OVERHEAD, ChannelCipher, Cipher, DecryptError, cipher_named, master_key
from stantools.format.layout import ScanStop
from stantools.format.message_batch import MessageBatch
from stantools.store.limits import ChannelLimits, StoreLimits

#: `bytes` is a property of the class below.
_Bytes = bytes


class EncryptedMessages:
    """Encrypts the messages of another store. Sizes and limits are those of the stored messages, which are longer."""

    def __init__(self, name: _Bytes, inner: MessageStore, key: _Bytes, cipher: Cipher, crc: Crc) -> None:
        self._name = name
        self._inner = inner
        self._cipher = cipher
        self._crc = crc
        self._crypt = ChannelCipher(key, name, last_sequence=inner.last)
        self._failed = FailedLookups(name)
        # Named one by one: a method that is added to stores must not bypass the encryption.
        self.flush: Final = inner.flush
        self.end_reading: Final = inner.end_reading
        self.sequence_at: Final = inner.sequence_at
        self.expire: Final = inner.expire

    @property
    def first(self) -> int:
        return self._inner.first

    @property
    def last(self) -> int:
        return self._inner.last

    @property
    def count(self) -> int:
        return self._inner.count

    @property
    def bytes(self) -> int:
        return self._inner.bytes

    @property
    def limits(self) -> ChannelLimits:
        return self._inner.limits

    def append(self, records: MessageRecordBuffer) -> None:
        batch, stops = decoded(records, self._name, self._crc)
        if bool((stops != ScanStop.END).any()):
            raise StorageError("a message cannot be decoded")
        payloads = [self._crypt.encrypt(data, self._cipher) for data in batch.payloads()]
        self._inner.append(self._encode(records, batch, payloads))

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        records = self._inner.read(first, count, size)
        if not len(records.sizes):
            return records
        batch, _ = decoded(records, self._name, self._crc)
        payloads: list[_Bytes] = []
        for data in batch.payloads():
            try:
                payloads.append(self._crypt.decrypt(data))
            except DecryptError as error:
                if not payloads:
                    self._failed.report(int(records.sequences[0]), error)
                    return EMPTY
                break
        return self._encode(records, batch.part(0, len(payloads)), payloads)

    def _encode(self, records: MessageRecordBuffer, batch: MessageBatch, payloads: list[_Bytes]) -> MessageRecordBuffer:
        """Returns the messages of a block with other data."""
        count = len(payloads)
        replies = list(batch.replies()) if batch.reply_size.any() else None
        sequences, timestamps = records.sequences[:count], records.timestamps[:count]
        encoded, sizes = kernels.encode_messages(self._name, sequences, timestamps, replies, payloads, self._crc)
        return block_of(encoded, sizes, sequences, timestamps)


class EncryptedStore:
    """Encrypts the messages of another store. `crc` is None: blocks are encoded again."""

    def __init__(self, inner: StateStore, options: EncryptionOptions) -> None:
        master_key(options.key)
        self.kind: str = inner.kind
        self.limits: StoreLimits = inner.limits
        self.crc: Crc | None = None
        self._inner = inner
        self._key = options.key
        if options.cipher:
            self._cipher = cipher_named(options.cipher)
        else:
            has_aes = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
            self._cipher = Cipher.AES if has_aes else Cipher.CHACHA

    def recover(self) -> Recovered | None:
        found = self._inner.recover()
        if found is None:
            return None
        channels = {name: (self._wrap(name, store), subs) for name, (store, subs) in found.channels.items()}
        return Recovered(found.server, found.clients, channels)

    @property
    def largest(self) -> int:
        """Bytes of an encoded message that can be stored when it is encrypted."""
        return self._inner.largest - OVERHEAD

    def create_channel(self, name: bytes) -> ChannelStore:
        return self._wrap(name, self._inner.create_channel(name))

    def __getattr__(self, name: str) -> Any:
        """Forwards everything that does not concern messages, also of a `Remote` store."""
        return getattr(self._inner, name)

    @property
    def wake(self) -> Callable[[], None] | None:
        return self._inner.wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._inner.wake = wake

    def _wrap(self, name: bytes, store: ChannelStore) -> ChannelStore:
        crc = self._inner.crc or Crc()
        messages = EncryptedMessages(name, store.messages, self._key, self._cipher, crc)
        return ChannelStore(messages, store.subscriptions, store.making)
