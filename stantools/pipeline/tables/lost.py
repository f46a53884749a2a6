"""What a stream cannot read, or not any more, told as rows: nothing is passed over without one."""

from __future__ import annotations

from dataclasses import dataclass

#: Status of a row that says that messages were gone before they were read.
REMOVED = "removed"
#: Status of a row that says that the files are not those that were read before.
REPLACED = "replaced"
#: Status of a row for a data file that is passed over, because another one has the same slice number.
NOT_FOLLOWED = "not-followed"


@dataclass(frozen=True)
class Lost:
    """Something that a stream does not read, to be reported as a row.

    Attributes:
        root: The store.
        channel: The channel.
        status: `REMOVED`, `REPLACED` or `NOT_FOLLOWED`.
        file: The slice relative to the root, or "".
        sequence: The first message that is missing, as far as that is known.
        offset: Where it would have begun, as far as that is known.
        size: Bytes that are missing, as far as that is known.
        message: What happened.
        cost: Nothing has to be read for it.
    """

    root: str
    channel: str
    status: str
    file: str
    sequence: int | None
    offset: int | None
    size: int | None
    message: str
    cost: int = 0


def not_followed(root: str, file: str, followed: str) -> Lost:
    """Says that a data file is passed over.

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
