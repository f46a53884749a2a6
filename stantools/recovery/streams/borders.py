"""Messages whose subject or headers begin or end elsewhere than they did: the hash covers all bytes but no sizes.

A message is repaired if exactly one border fits (jetstream-store.md section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_BEGIN: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"
#: bits of a subject's size, one of which may have flipped
_SIZE_BITS: Final = 16


def repaired(
    text: bytes, subject_size: int, *, headed: bool, fits: Callable[[bytes], bool]
) -> tuple[bytes, bytes, bytes] | None:
    """Returns subject, headers and payload in the bytes of a message; None if no border fits, or several do.

    `text` is the subject, the headers and the payload without the field between them. `subject_size` is the size that
    the record says, `fits` whether the stream can have a subject.
    """
    if headed:  # a wrong size of the subject would not keep the hash
        end = text.find(_END, subject_size)
        if end < 0 or not text.startswith(_BEGIN, subject_size):
            return None
        return text[:subject_size], text[subject_size : end + len(_END)], text[end + len(_END) :]
    sizes = [subject_size ^ 1 << bit for bit in range(_SIZE_BITS)]
    found = [size for size in sizes if 0 < size <= len(text) and fits(text[:size])]
    return (text[: found[0]], b"", text[found[0] :]) if len(found) == 1 else None
