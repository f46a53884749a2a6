"""What the kernels say about many publishes at once: a table of numbers, and a few objects per batch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from stantools.nats.frames import Payloads

    Table = npt.NDArray[np.int32]
    Rows = npt.NDArray[np.int32]

#: Columns of the table. Positions are in the buffer that the frames are in; a size of 0 means that there is nothing.
CLIENT: Final = 0  #: what `clients` or `connections` has under the publisher's name
CHANNEL: Final = 1  #: what `channels` has under the channel's name
GUID: Final = 2
GUID_SIZE: Final = 3
REPLY: Final = 4  #: the PubMsg's own reply field, which is stored; not where the ack goes
REPLY_SIZE: Final = 5
DATA: Final = 6
DATA_SIZE: Final = 7
WIDTH: Final = 8


class PublishStop(enum.IntEnum):
    """Why `read_publishes` went no further."""

    GOOD = 0  #: all frames are in the table
    FULL = 1  #: the table is full
    UNDECODABLE = 2  #: no PubMsg, or one that only the general decoder should judge
    NO_GUID = 3
    UNKNOWN_CLIENT = 4
    UNKNOWN_CHANNEL = 5
    WRONG_SUBJECT = 6  #: the channel is not the one of the NATS subject that it came to


class ChannelPublishes(NamedTuple):
    """The publishes to one channel that has got several."""

    channel: int  #: what `channels` has under its name
    rows: Rows  #: rows of the table in the order of arrival


class AckRun(NamedTuple):
    """Publishes in a row that want their acks at the same subject."""

    reply: bytes  #: the subject; empty when no ack is wanted
    begin: int  #: first row of the table, and of the acks
    end: int  #: the row behind the last


@dataclass(slots=True)
class PublishColumns:
    """The frames that were plainly good, up to the first that was not. Row i of the table is the i-th of them."""

    count: int  #: how many frames were taken: rows of the table, and of `acks`
    status: PublishStop  #: why it ended there; anything but GOOD is about the frame behind the last one taken
    groups: list[ChannelPublishes]  #: the rows by channel, in the order in which the channels appear first
    lone: list[tuple[int, int]]  #: channels that have got one publish, and its row, in the order of arrival
    acks: Payloads  #: the encoded PubAck of each, in bytes of its own: good beyond the call
    runs: list[AckRun]  #: where to send them, in the order of arrival
    size: int  #: bytes of all PubMsgs taken


def publish_table(rows: int) -> Table:
    """Returns an empty table, to be used again and again."""
    return np.zeros((rows, WIDTH), np.int32)
