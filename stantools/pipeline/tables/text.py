r"""Names and subjects as the text of a table: what is not UTF-8 is escaped, because tables hold nothing else."""

from __future__ import annotations

import os

from stantools.pipeline.tables.model import SliceRef


def plain_text(value: bytes | str) -> str:
    r"""Returns bytes as text; each byte that does not belong to UTF-8 becomes `\xNN`.

    Args:
        value: Bytes, or a name as the operating system's functions give it, with surrogate escapes.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        value = os.fsencode(value)
    return value.decode("utf-8", "backslashreplace")


def raw_name(channel: str) -> bytes:
    """Returns the bytes of a channel's name as records carry them in their subject."""
    return os.fsencode(channel)


def slice_name(ref: SliceRef) -> str:
    """Returns what stands in the column `slice`: the path of the data file below the store (`orders/msgs.1.dat`)."""
    root, data = ref.store.root, ref.data
    if "://" in root and (chain := root.find("::", root.find("://"))) > 0:
        # In a chain of URLs, such as that of a zip file, the path ends where the next one begins.
        data, root = data.removesuffix(root[chain:]), root[:chain]
    root = root.rstrip("/") + "/"
    if data.startswith(root):
        return plain_text(data[len(root) :].lstrip("/"))
    return plain_text(data.rpartition("/")[2])
