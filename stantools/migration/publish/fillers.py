"""Fillers that are in a stream: finding and deleting them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from stantools.migration.publish.asking import ask_many

if TYPE_CHECKING:
    from stantools.migration.target.jetstream import JetStream

#: Servers before this version undo a deletion without erasing when they are killed (seen: 2.9.10).
_LASTING_FROM: Final = (2, 10, 0)
#: Fillers that are deleted at once.
AT_ONCE: Final = 4096
#: There is no such message: it has been deleted already.
_NOT_FOUND: Final = 10043


async def delete_fillers(js: JetStream, name: str, sequences: Iterable[int]) -> None:
    """Deletes messages of a stream; those that are gone already are no failure.

    Args:
        js: JetStream.
        name: The stream.
        sequences: Which ones; they must be fillers.

    Raises:
        TargetError: It could not be done.
    """
    rest = iter(sequences)
    while part := list(islice(rest, AT_ONCE)):
        bodies = [{"seq": sequence, "no_erase": js.connection.version >= _LASTING_FROM} for sequence in part]
        await ask_many(js, f"STREAM.MSG.DELETE.{name}", bodies, ignore=frozenset({_NOT_FOUND}))
