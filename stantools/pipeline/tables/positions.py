"""The position of every channel of every store, as the offsets of a stream, and the losses that it reports.

An offset is a JSON object that is restored after a restart:

    {"v": 1, "stores": {"/data/stan": {"orders": "17:4398271:88123:1795219649260503021:140"}}}

A channel's text is slice number and byte offset in its data file, then sequence, timestamp and record size of the
last message before it. With many channels the object is compressed: ten thousand of them take some 200 KB, a quarter
of the plain form, and Spark keeps a hundred offsets and more.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.store.growing_channel import LostRange
from stantools.store.growing_slice import ChannelPosition

VERSION = 1
#: Channels above which an offset is compressed.
READABLE_CHANNELS = 256
#: Status of a loss: a data file is skipped, because another one has the same slice number.
NOT_FOLLOWED = "not-followed"


@dataclass
class Offsets:
    stores: dict[str, dict[str, ChannelPosition]] = field(default_factory=dict)  #: by store root and channel name
    #: Reasons why something cannot be read at present, by store root and channel name ("" for the store itself). These
    #: were reported; new ones must be.
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Data files that are skipped because another one has the same slice number: by store root the files relative to
    #: it, with the name of the other file. Reported in the same way.
    aside: dict[str, dict[str, str]] = field(default_factory=dict)

    def copy(self) -> Offsets:
        return Offsets(
            {root: dict(channels) for root, channels in self.stores.items()},
            {root: dict(reasons) for root, reasons in self.unreadable.items()},
            {root: dict(files) for root, files in self.aside.items()},
        )

    def note(self, root: str, channel: str, reason: str) -> None:
        self.unreadable.setdefault(root, {})[channel] = reason

    def pass_over(self, root: str, files: dict[str, str]) -> None:
        if files:
            self.aside.setdefault(root, {}).update(files)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that Spark keeps; equal offsets have equal texts."""
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
        """Restores an offset; raises `StoreUnreadableError` if it is of another source or a later version."""
        try:
            if value["v"] != VERSION:
                raise _offset_error(f"has version {value['v']!r}; expected {VERSION}")
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
            raise _offset_error(f"was not written by this source ({error!r})") from error
        return cls(stores, unreadable, aside)


def _position(text: str) -> ChannelPosition:
    number, offset, sequence, timestamp, size = map(int, text.split(":"))
    return ChannelPosition(number, offset, sequence, timestamp, size)


def _offset_error(reason: str) -> StoreUnreadableError:
    return StoreUnreadableError(
        f"the offset in the checkpoint {reason}",
        "use the version that wrote the checkpoint, or start over with another checkpointLocation",
    )


def not_followed(root: str, file: str, followed: str) -> LostRange:
    return LostRange(
        root,
        file.rpartition("/")[0],
        NOT_FOLLOWED,
        file,
        None,
        None,
        None,
        f"{root}/{file}: is not followed, because {followed} has the same slice number; spark.read reads its "
        "messages" + (" with the option archived" if file.endswith(".bak") else ""),
    )
