"""Many messages in one buffer: what travels between rules and stores instead of objects per message. And one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stantools.nats.frames import Payloads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: A stored message by itself, as columns for one would cost more than the message: its record (eight bytes of header,
#: then the encoded MsgProto), its sequence, its timestamp in nanoseconds since the epoch.
Record = tuple[bytes, int, int]


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
