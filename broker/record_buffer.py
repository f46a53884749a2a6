"""Stored messages between rules and stores: many in one buffer, or a single record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.nats.frames import Payloads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stantools.format.envelope import Buffer

#: A single stored message, for which columns would be too expensive: its record (eight bytes of header, then the
#: encoded MsgProto), its sequence, its timestamp in nanoseconds since the epoch.
Record = tuple[bytes, int, int]


class MessageRecordBuffer(Payloads):
    """Stored messages; each payload is an encoded MsgProto (streaming-protocol.md section 2), as delivered and stored.

    If the buffer comes from `hot.kernels.encode_records` or a data file, the eight bytes before each payload are its
    record header (filestore.md section 2.1), and the bytes can be written to a slice unchanged.
    """

    __slots__ = ("sequences", "timestamps", "total")

    def __init__(
        self,
        data: Buffer,
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.uint32],
        sequences: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.int64],
        total: int = -1,
    ) -> None:
        Payloads.__init__(self, data, starts, sizes)
        self.sequences = sequences  #: sequence of each message, strictly ascending
        self.timestamps = timestamps  #: timestamp of each message in nanoseconds since the epoch
        #: Bytes of all payloads if the buffer contains exactly their records, one after the other; otherwise -1.
        self.total = total
