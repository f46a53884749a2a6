"""Messages whose subject or headers begin or end elsewhere than they did: the hash covers all bytes but no sizes.

A message is repaired if exactly one border fits (jetstream-store.md section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, HEADER_LENGTH_SIZE
from stantools.streamfiles.raft_operations import LoggedMessage
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

_BEGIN: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"
#: bits of a subject's size, one of which may have flipped
_SIZE_BITS: Final = 16


def known_subjects(survey: StreamSurvey) -> set[bytes]:
    """Returns the subjects that a stream has, without those of messages with damaged borders."""
    known = survey.directory.index
    found: set[bytes] = set()
    if known and known.version and known.subjects:
        at = 0
        for size in known.subject_sizes.tolist():
            found.add(known.subject_text[at : at + size])
            at += size
        return found
    for _, batch in survey.messages():
        found.update(map(batch.subject, np.unique(batch.subject_hashes(), return_index=True)[1].tolist()))
    return found


def mended_message(rows: RecordBatch, row: int, subjects: set[bytes]) -> LoggedMessage | None:
    start, size = int(rows.subject_start[row]), int(rows.subject_size[row])
    headed = bool(rows.header_start[row])
    rest = int(rows.length[row]) - EMPTY_RECORD_SIZE - size
    text = rows.subject(row)
    if headed:
        start, rest = start + HEADER_LENGTH_SIZE, rest - HEADER_LENGTH_SIZE
    text += bytes(rows.buffer[start + size : start + size + rest])
    parts = _repaired(text, size, headed=headed, fits=subjects.__contains__)
    return LoggedMessage(int(rows.sequence[row]), int(rows.timestamp[row]), *parts) if parts else None


def _repaired(
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
