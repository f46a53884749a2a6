"""What a sample store holds, and what is done to it. Nothing here imports numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stantools.errors import UsageError
from stantools.format.crc import IEEE, Crc
from stantools.options import CLUSTER_ID, COUNT, CRC_POLY, KEY, SIZE, option
from stantools.secret import Secret
from stantools.store.limits import DEFAULT_SLICE_MAX_BYTES, SliceLimits, is_channel_name

_NAMES = ("orders", "telemetry.device-1", "audit.log", "orders.eu", "jobs.queue")
_SLICES = 4  # of a channel that is small


@dataclass(frozen=True)
class SampleOptions:
    """What to write."""

    channels: int = COUNT.field(help="How many channels.", default=3)
    names: Sequence[str] = option("A channel by name; may be repeated.", "--name", default=(), metavar="CHANNEL")
    messages: int = COUNT.field(help="Messages in each channel.", default=100)
    size: int = SIZE.field(help="Bytes of a payload.", default=128)
    seed: int = option("The same seed makes the same store.", default=1, kind=int)
    cluster_id: str = CLUSTER_ID.field(default="test-cluster")
    no_subscriptions: bool = option("No clients and no subscriptions.", default=False)
    #: The last channel begins at sequence 101, has a gap that the server has filled, and one that it has not.
    gaps: bool = option("Gaps in the sequences of the last channel.", default=False)
    #: Without limits of slices small channels have four, and others those of the server's 64 MiB.
    slice_msgs: int = COUNT.field(help="Messages of a slice.", default=0)
    slice_bytes: int = SIZE.field(help="Bytes of a slice.", default=0)
    polynomial: int | None = CRC_POLY.field(
        help="CRC polynomial.", flags=("--crc-poly",), default=IEEE, written="ieee", metavar="N|NAME"
    )
    encryption_key: Secret = KEY.field()
    cipher: str = option("How to encrypt.", default="AES", choices=("AES", "CHACHA"), any_case=True, quiet=True)
    #: Names of damages (`damage.DAMAGES`), done in this order to the channels in turn.
    damage: Sequence[str] = option("Damage the store; may be repeated.", default=(), metavar="NAME")

    @property
    def channel_names(self) -> list[str]:
        """The channels' names."""
        made_up = (_NAMES[n] if n < len(_NAMES) else f"channel.{n + 1}" for n in range(self.channels))
        return list(self.names or made_up)

    @property
    def limits(self) -> SliceLimits:
        """When a slice is full."""
        if self.slice_msgs or self.slice_bytes:
            return SliceLimits(self.slice_msgs, self.slice_bytes)
        if self.messages * self.size < DEFAULT_SLICE_MAX_BYTES:
            return SliceLimits(max(math.ceil(self.messages / _SLICES), 1))
        return SliceLimits()

    def crc(self) -> Crc:
        """Returns the CRC of the store.

        Raises:
            UsageError: The polynomial would have to be found in records.
        """
        if self.polynomial is None:
            raise UsageError("a new store has no polynomial to detect", "give --crc-poly a number or a name")
        return Crc(self.polynomial)

    def check(self) -> None:
        """Checks that there can be such channels and messages.

        Raises:
            UsageError: There cannot.
        """
        if min(self.channels, self.messages, self.size) < 0:
            raise UsageError("a sample cannot have fewer than 0 channels, messages or bytes")
        for name in self.names:
            if not is_channel_name(name):
                raise UsageError(f"{name!r} is not a valid channel name")
