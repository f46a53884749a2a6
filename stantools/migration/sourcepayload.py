"""What is done to messages on their way: payloads are decrypted, replies are made fit for headers.

Most batches need neither and go on as they are, pointing into the mapped file. For one that does, payloads and replies
are put together anew in a buffer of its own.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from stantools.format.columns import MessageColumns
from stantools.format.encryption import OVERHEAD, ChannelCipher, Cipher, DecryptError
from stantools.format.layout import Flag
from stantools.migration.headers import safe_value
from stantools.migration.sourceread import Piece
from stantools.store.mapping import Buffer

_U8 = npt.NDArray[np.uint8]
_Rows = npt.NDArray[np.bool_]

#: Nonces count the messages of a channel; a count beyond this is not one.
_MAX_COUNT = 1 << 48
#: Lengths of replies that are looked at one after the other; a batch with more of them is looked at message by message.
_MAX_LENGTHS = 64


class Finisher:
    """Makes messages ready for a target.

    Args:
        channel: The channel's name as its records carry it; the key depends on it.
        key: The encryption key given to the server; None leaves payloads as they are stored.
        keep_sealed: Leave a payload as it is stored where it cannot be decrypted.

    Raises:
        UsageError: The key is empty.
    """

    def __init__(self, channel: bytes, key: bytes | None = None, *, keep_sealed: bool = False) -> None:
        self._channel = channel
        self._cipher = None if key is None else ChannelCipher(key, channel)
        self._keep_sealed = keep_sealed

    def finish(self, piece: Piece) -> Piece:
        """Returns the messages with decrypted payloads and replies that can be header values.

        Raises:
            DecryptError: A payload cannot be decrypted.
        """
        buffer, columns = piece
        content = np.frombuffer(buffer, np.uint8)
        sealed = _sealed(content, columns) if self._cipher else None
        if sealed is not None and not sealed.any():
            sealed = None
        if sealed is None and _replies_are_safe(content, buffer, columns):
            return piece
        return self._rebuilt(buffer, columns, sealed)

    def _rebuilt(self, buffer: Buffer, columns: MessageColumns, sealed: _Rows | None) -> Piece:
        """Puts payloads and replies into a buffer of their own."""
        payloads = _texts(buffer, columns.data_start, columns.data_size)
        if sealed is not None:
            self._decrypt(payloads, columns, np.flatnonzero(sealed).tolist())
        replies = [safe_value(reply) for reply in _texts(buffer, columns.reply_start, columns.reply_size)]
        part = columns.part(0, columns.capacity)
        part.data_size = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        part.reply_size = np.fromiter(map(len, replies), np.uint32, len(replies))
        ends = np.cumsum(part.data_size.astype(np.int64))
        part.data_start = ends - part.data_size
        part.reply_start = np.cumsum(part.reply_size.astype(np.int64)) - part.reply_size + ends[-1]
        return memoryview(b"".join([*payloads, *replies])), part

    def _decrypt(self, payloads: list[bytes], columns: MessageColumns, rows: list[int]) -> None:
        assert self._cipher is not None
        failed: list[tuple[int, str]] = []
        for row in rows:
            try:
                payloads[row] = self._cipher.decrypt(payloads[row])
            except DecryptError as error:
                failed.append((row, error.message))
        if failed and not self._keep_sealed:
            row, why = failed[0]
            sequences = columns.sequence
            raise DecryptError(
                f"channel {os.fsdecode(self._channel)!r}: message {int(sequences[row])} cannot be decrypted: {why} "
                f"({len(failed)} of {len(rows)} that look encrypted among messages {int(sequences[rows[0]])} to "
                f"{int(sequences[rows[-1]])})",
                "check the encryption key"
                if len(failed) == len(rows)
                else "a server with this key could not deliver them either: they were stored with another key, or "
                "plain and only look encrypted; leave their payloads as they are stored, or leave the channel out",
            )


def _texts(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> list[bytes]:
    ends = (starts + sizes).tolist()
    return [bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]


def _sealed(content: _U8, columns: MessageColumns) -> _Rows:
    """Tells which payloads a server that has a key would try to decrypt: they begin with the code of a cipher."""
    # A message without data has its start at 0, which is a byte like any other, unless nothing is there at all.
    first = content[columns.data_start] if len(content) else np.zeros(columns.capacity, np.uint8)
    sealed: _Rows = (columns.data_size > 0) & ((first == Cipher.AES) | (first == Cipher.CHACHA))
    return sealed


def _replies_are_safe(content: _U8, buffer: Buffer, columns: MessageColumns) -> bool:
    """Tells whether every reply comes back unchanged as a header value, as `headers.is_safe_value` does for one."""
    if not int(np.bitwise_or.reduce(columns.flags)) & Flag.HAS_REPLY:
        return True
    rows = np.flatnonzero(columns.reply_size)
    starts, sizes = columns.reply_start[rows], columns.reply_size[rows]
    lengths = np.unique(sizes).tolist()
    if len(lengths) > _MAX_LENGTHS:
        return all(safe_value(reply) == reply for reply in _texts(buffer, starts, sizes))
    for length in lengths:
        # Every place where so many bytes can begin, without copying; then the replies are rows of a table.
        places = np.ndarray((len(content) - length + 1,), f"V{length}", buffer, strides=(1,))
        table = places[starts[sizes == length]].view(np.uint8).reshape(-1, length)
        if (
            int(table.min()) < 0x20
            or (table == 0x7F).any()
            or (table[:, 0] == 0x20).any()
            or (table[:, -1] == 0x20).any()
        ):
            return False
    return True


def looks_encrypted(piece: Piece) -> bool:
    """Tells whether there is a payload among these messages that was surely written by an encrypting server.

    It begins with the code of a cipher, 4 random bytes and a count of messages (filestore.md section 9.2).
    """
    buffer, columns = piece
    sealed = _sealed(np.frombuffer(buffer, np.uint8), columns) & (columns.data_size > OVERHEAD)
    for start in columns.data_start[sealed].tolist():
        if 0 < int.from_bytes(buffer[start + 5 : start + 13], "big") < _MAX_COUNT:
            return True
    return False
