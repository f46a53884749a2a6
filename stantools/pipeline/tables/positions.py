"""How far each channel of each store was read, the offsets of a stream; and what a stream cannot read, or not any more.

An offset is a JSON object, made of itself again after a restart:

    {"v": 1, "stores": {"/data/stan": {"orders": "17:4398271:88123:1795219649260503021:140"}}}

A channel's text is slice number and byte offset in its data file, then sequence, timestamp and record size of the last
message before it.
With many channels the same object is compressed, so that ten thousand of them take some 200 KB and not four times as
much; Spark keeps a hundred offsets and more.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.store.safe_end import UNKNOWN, Position

VERSION = 1
#: With more channels than this an offset is compressed.
READABLE_CHANNELS = 256
#: Where a channel begins that came into being while its store was followed: nothing of it may be missing.
BEGINNING = Position(1)
#: Where anything else begins: with whatever is there.
ANYWHERE = Position(0, FILE_HEADER_SIZE, UNKNOWN)


@dataclass
class Offsets:
    """How far everything was read."""

    stores: dict[str, dict[str, Position]] = field(default_factory=dict)  #: by store root and channel name
    #: Why something cannot be read at present, by store root and channel name ("" for the store itself). What is in
    #: here was reported; what is new in here has to be.
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Data files that are skipped, because another one has the same slice number: by store root the files relative
    #: to it, with the name of the other one. Reported in the same way.
    aside: dict[str, dict[str, str]] = field(default_factory=dict)

    def copy(self) -> Offsets:
        """Returns a copy whose dictionaries can be changed."""
        return Offsets(
            {root: dict(channels) for root, channels in self.stores.items()},
            {root: dict(reasons) for root, reasons in self.unreadable.items()},
            {root: dict(files) for root, files in self.aside.items()},
        )

    def note(self, root: str, channel: str, reason: str) -> None:
        """Notes why something cannot be read at present."""
        self.unreadable.setdefault(root, {})[channel] = reason

    def pass_over(self, root: str, files: dict[str, str]) -> None:
        """Notes data files that are skipped."""
        if files:
            self.aside.setdefault(root, {}).update(files)

    def to_json(self) -> dict[str, Any]:
        """Returns it as Spark keeps it; equal offsets have equal texts."""
        content: dict[str, Any] = {
            "stores": {
                root: {name: ":".join(map(str, channels[name])) for name in sorted(channels)}
                for root, channels in sorted(self.stores.items())
            }
        }
        for name, told in (("unreadable", self.unreadable), ("aside", self.aside)):
            if any(told.values()):
                content[name] = {root: dict(sorted(each.items())) for root, each in sorted(told.items()) if each}
        if sum(map(len, self.stores.values())) <= READABLE_CHANNELS:
            return {"v": VERSION, **content}
        packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 6)
        return {
            "v": VERSION,
            "channels": sum(map(len, self.stores.values())),
            "zlib": base64.b64encode(packed).decode(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offsets:
        """Reads what `to_json` gave.

        Raises:
            StoreUnreadableError: It is something else, or was written by a later version.
        """
        try:
            if value["v"] != VERSION:
                raise _unfit(f"has version {value['v']!r}, and this program knows {VERSION}")
            if "zlib" in value:
                value = json.loads(zlib.decompress(base64.b64decode(value["zlib"], validate=True)))
            stores = {
                str(root): {str(name): _position(text) for name, text in channels.items()}
                for root, channels in value["stores"].items()
            }
            unreadable, aside = (
                {
                    str(root): {str(name): str(text) for name, text in each.items()}
                    for root, each in value.get(told, {}).items()
                }
                for told in ("unreadable", "aside")
            )
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error) as error:
            raise _unfit(f"is not one that this source wrote ({error!r})") from error
        return cls(stores, unreadable, aside)


def _position(text: str) -> Position:
    number, offset, sequence, timestamp, size = map(int, text.split(":"))
    return Position(number, offset, sequence, timestamp, size)


def _unfit(reason: str) -> StoreUnreadableError:
    return StoreUnreadableError(
        f"the offset in the checkpoint {reason}",
        "go on with the version that wrote the checkpoint, or start over with another checkpointLocation",
    )


#: Status of a row that says that messages were gone before they were read.
REMOVED = "removed"
#: Status of a row that says that the files are not those that were read before.
REPLACED = "replaced"
#: Status of a row for a data file that is skipped, because another one has the same slice number.
NOT_FOLLOWED = "not-followed"


@dataclass(frozen=True)
class Lost:
    """Something that a stream does not read, to be reported as a row."""

    root: str  #: the store
    channel: str
    status: str  #: `REMOVED`, `REPLACED` or `NOT_FOLLOWED`
    file: str  #: the slice relative to the root, or ""
    sequence: int | None  #: the first message that is missing, as far as that is known
    offset: int | None  #: where it would have begun, as far as that is known
    size: int | None  #: bytes that are missing, as far as that is known
    message: str  #: what happened
    cost: int = 0  #: nothing has to be read for it


def not_followed(root: str, file: str, followed: str) -> Lost:
    """Says that a data file is skipped.

    Args:
        root: The store.
        file: The file, relative to the root.
        followed: Name of the one that is followed.
    """
    return Lost(
        root,
        file.rpartition("/")[0],
        NOT_FOLLOWED,
        file,
        None,
        None,
        None,
        f"{root}/{file}: is not followed, because {followed} is, which has the same slice number; spark.read has its "
        "messages" + (" with the option archived" if file.endswith(".bak") else ""),
    )
