"""Results of the kernels for a batch of publishes: a table of numbers, and a few objects."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from stantools.nats.frames import Payloads

if TYPE_CHECKING:
    import numpy.typing as npt

    Table: TypeAlias = npt.NDArray[np.int32]
    Rows: TypeAlias = npt.NDArray[np.int32]

#: Columns of the table. Positions are in the buffer of the frames; a size of 0 means an absent field.
CLIENT: Final = 0  #: number of the publisher in `clients` or `connections`
CHANNEL: Final = 1  #: number of the channel in `channels`
GUID: Final = 2
GUID_SIZE: Final = 3
REPLY: Final = 4  #: the PubMsg's own reply field, which is stored; acknowledgements go elsewhere
REPLY_SIZE: Final = 5
DATA: Final = 6
DATA_SIZE: Final = 7
WIDTH: Final = 8


class PublishStop(enum.IntEnum):
    """Reasons of `read_publishes` to stop."""

    GOOD = 0  #: all frames are in the table
    FULL = 1  #: the table is full
    UNDECODABLE = 2  #: not a PubMsg, or one for the general decoder
    NO_GUID = 3
    UNKNOWN_CLIENT = 4
    UNKNOWN_CHANNEL = 5
    WRONG_SUBJECT = 6  #: the channel differs from the NATS subject


class ChannelPublishes(NamedTuple):
    """The publishes to a channel that has several."""

    channel: int  #: number of the channel
    rows: Rows  #: rows in the order of arrival


class AckRun(NamedTuple):
    """Consecutive publishes whose acknowledgements go to the same subject."""

    reply: bytes  #: empty if no acknowledgement is wanted
    begin: int  #: first row of the table and of the acknowledgements
    end: int  #: row after the last


class PublishColumns(NamedTuple):
    """The valid frames before the first doubtful one. Row i of the table is the i-th of them."""

    taken: int  #: frames taken: rows of the table and of `acks`
    status: PublishStop  #: reason of the end; all but GOOD concern the frame after the last one taken
    groups: list[ChannelPublishes]  #: rows by channel, in the order of each channel's first row
    singles: list[tuple[int, int]]  #: channels with a single publish, and its row, in the order of arrival
    acks: Payloads  #: encoded PubAck of each row, valid after the call
    runs: list[AckRun]  #: destinations of `acks`, in the order of arrival
    size: int  #: bytes of all PubMsgs taken


def publish_table(rows: int) -> Table:
    return np.zeros((rows, WIDTH), np.int32)
