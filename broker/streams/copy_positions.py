"""The positions of a stream in the sources that it copies, which `sources.db` stores.

The headers of copies have these positions. The last existing copy of each source is its *mark*: its header alone
shows the position, so the positions are saved before a mark is deleted.

Facts: jetstream-server.md section 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stantools.streamfiles.meta import CopiedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.stores.streams.interface import StreamStore


class CopySource(Protocol):
    """The source of a copied message."""

    key: bytes  #: key of the source among those of the stream
    position: int  #: every message of the source up to this sequence is copied or not wanted

    def stored(self, sequence: int, *, stays: bool) -> None:
        """The current message is stored, and no limit is enforced yet; without `stays` it may be deleted at once."""

    def info(self, now: int) -> dict[str, Any]:
        """Returns the members of an answer about this source."""


class CopyPositions:
    """The positions of the sources of one stream.

    `end` is a sequence above that of the stream's last copy. Those of a mirror are not `kept`: its last sequence is its
    position.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.sources: Sequence[CopySource] = ()
        self.kept = True
        self.marks: set[int] = set()  #: sequences of the marks

    def save(self, store: StreamStore) -> None:
        """Writes the positions, after which no message is a mark."""
        self.marks.clear()
        if self.sources and self.kept:
            store.keep_copied(
                CopiedState(self.end, {each.key: each.position for each in self.sources if each.position})
            )

    def save_below(self, store: StreamStore, sequence: int) -> None:
        """Writes the positions if a mark is below a sequence, because the messages below it are about to be deleted."""
        if self.marks and min(self.marks) < sequence:
            self.save(store)
