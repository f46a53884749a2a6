"""The table into which a parser puts PUB and HPUB frames: one row a frame, positions in the buffer it was fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from stantools.format.envelope import Buffer

#: Columns of the table.
SUBJECT: Final = 0
SUBJECT_SIZE: Final = 1
REPLY: Final = 2
REPLY_SIZE: Final = 3
#: Bytes of headers in front of the payload, 0 for PUB.
HEADER_SIZE: Final = 4
#: Where headers (if any) and payload begin.
PAYLOAD: Final = 5
#: Bytes of headers and payload.
PAYLOAD_SIZE: Final = 6
#: What the route table knows under the subject, -1 for nothing.
ROUTE: Final = 7
WIDTH: Final = 8

Frames = npt.NDArray[np.int32]

#: Takes rows `begin` to `end` of a table. Buffer and table are good for the time of the call only.
Handler = Callable[[Buffer, Frames, int, int], None]


def frame_table(rows: int) -> Frames:
    """Returns an empty table, C-contiguous."""
    return np.zeros((rows, WIDTH), np.int32)
