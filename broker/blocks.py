"""Many payloads in one buffer: what travels between sockets, rules and stores instead of objects per message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stantools.format.envelope import Buffer


@dataclass(slots=True)
class Payloads:
    """Payloads that lie somewhere in a buffer."""

    data: Buffer  #: The buffer. It does not change for as long as the block lives.
    starts: npt.NDArray[np.int64]  #: where each payload begins
    sizes: npt.NDArray[np.uint32]  #: bytes of each

    def __len__(self) -> int:
        return len(self.sizes)

    def payload(self, row: int) -> bytes:
        """Returns a copy of one payload."""
        start = int(self.starts[row])
        return bytes(memoryview(self.data)[start : start + int(self.sizes[row])])


@dataclass(slots=True)
class Records(Payloads):
    """Stored messages: each payload is an encoded MsgProto, as it is delivered and stored.

    Facts: streaming-protocol.md section 2.

    Where the buffer comes from `hot.kernels.encode_records` or a data file, eight bytes in front of each payload are
    its record header (filestore.md section 2.1), so that the bytes can be written to a slice as they are.
    """

    sequences: npt.NDArray[np.uint64]  #: sequence of each message, strictly rising
    timestamps: npt.NDArray[np.int64]  #: timestamp of each, nanoseconds since the epoch
    #: Bytes of all payloads, where it is known that the buffer holds their records and nothing else, one behind the
    #: other; otherwise -1.
    total: int = -1
