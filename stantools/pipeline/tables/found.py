"""Stores and slices that were found: their channels and files by name and size, as listings tell them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.listing import Entry, Place, listed
from stantools.pipeline.tables.model import SliceRef, StoreRef, Unreadable
from stantools.store.directory import INDEX_NAME, SLICE_NAME, slice_number, subject_matches


@dataclass(frozen=True)
class FoundChannel:
    """A channel directory as listed, or slices without a store.

    Attributes:
        store: The store.
        name: The channel.
        directory: Path or URL of its directory.
        entries: What is in it; for slices without a store, these and their indexes.
    """

    store: StoreRef
    name: str
    directory: str
    entries: tuple[Entry, ...]

    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.entries)


@dataclass
class FoundStore:
    """A store, or slices that lie in one directory outside of any.

    Attributes:
        ref: Its path and polynomial.
        place: Where it lies.
        entries: What is in its root.
        channel_names: Its channels, sorted as the server sorts them; none for slices without a store.
        loose: The slices without a store, by channel; None for a store.
        archived: Take `.bak` slices although that was not asked for: there is nothing else, or they were named.
    """

    ref: StoreRef
    place: Place
    entries: tuple[Entry, ...] = ()
    channel_names: list[str] = field(default_factory=list)
    loose: list[FoundChannel] | None = None
    archived: bool = False

    def channels(self, patterns: tuple[str, ...] = ()) -> Iterator[FoundChannel | Unreadable]:
        """Lists its channels.

        Args:
            patterns: NATS wildcards; a channel that matches any is taken. None given takes all.

        Yields:
            Each channel, or what cannot be listed.
        """
        if self.loose is not None:
            yield from (each for each in self.loose if _wanted(each.name, patterns))
            return
        yield from listed(self._channel, [name for name in self.channel_names if _wanted(name, patterns)])

    def _channel(self, name: str) -> FoundChannel | Unreadable:
        directory = self.place.join(self.ref.root, name)
        try:
            return FoundChannel(self.ref, name, directory, tuple(self.place.entries(directory)))
        except StoreUnreadableError as error:
            return Unreadable(self.ref.root, name, "", error.message, error.remedy)

    def slices(self, channel: FoundChannel, *, archived: bool = False) -> list[SliceRef]:
        """Returns the slices of a channel by number, an archived one before a live one of the same number.

        Args:
            channel: One of its channels.
            archived: Take `.bak` slices as well.
        """
        data: list[tuple[int, bool, Entry]] = []
        indexes: dict[tuple[str, bool], Entry] = {}
        for entry in channel.entries:
            if match := SLICE_NAME.fullmatch(entry.name):  # even of a directory, which reading will refuse
                number = slice_number(match[1])
                if number is not None and (match[2] is None or archived or self.archived):
                    data.append((number, match[2] is None, entry))
            elif not entry.directory and (match := INDEX_NAME.fullmatch(entry.name)):
                indexes[match[1], match[2] is None] = entry
        data.sort(key=lambda each: each[:2])
        join = self.place.join
        refs = []
        for number, live, entry in data:
            index = indexes.get((str(number), live))
            refs.append(
                SliceRef(
                    self.ref,
                    channel.name,
                    number,
                    not live,
                    join(channel.directory, entry.name),
                    join(channel.directory, index.name) if index else None,
                    entry.size,
                    index.size if index else 0,
                )
            )
        return refs


def _wanted(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(subject_matches(pattern, name) for pattern in patterns)
