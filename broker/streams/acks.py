"""Acknowledgements of messages by clients, and the subjects that name the message.

Facts: jetstream-server.md sections 14 and 22.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Final

from stantools.notation import parse_duration

PREFIX: Final = b"$JS.ACK."
#: Payloads of a positive acknowledgement.
DONE: Final = (b"+ACK", b"", b"+OK")
#: Tokens of a subject: prefix, stream, consumer, deliveries, stream and consumer sequence, time, pending.
_TOKENS: Final = 9
#: tokens of a subject with domain and account after the prefix
_LONG: Final = (11, 12)
#: tokens of a subject of the preview, which has neither time nor pending
_SHORT: Final = 7


class AckKind(enum.Enum):
    ACK = enum.auto()
    NAK = enum.auto()
    PROGRESS = enum.auto()
    TERM = enum.auto()
    NEXT = enum.auto()
    NOTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Verb:
    kind: AckKind
    delay: int = 0  #: with NAK: nanoseconds until the next delivery
    text: str = ""  #: with TERM the reason, with NEXT the body of a pull request


@dataclass(frozen=True, slots=True)
class AckTarget:
    stream: str
    consumer: str
    sequence: int  #: stream sequence
    number: int  #: consumer sequence
    short: bytes = b""  #: first bytes of the preview's subject before its numbers; empty for the current form


def numbers(subject: bytes) -> tuple[bytes, bytes, int, int] | None:
    """Reads the subject of an acknowledgement in its usual form; None for every other form.

    The values are stream, consumer, stream sequence and consumer sequence.
    """
    tokens = subject.split(b".")
    if len(tokens) != _TOKENS:
        return None
    sequence, number = tokens[5], tokens[6]
    if not (sequence.isdigit() and number.isdigit() and len(sequence) < 20 and len(number) < 20):
        return None
    return tokens[2], tokens[3], int(sequence), int(number)


def place(subject: bytes, *, preview: bool = False) -> AckTarget | None:
    """Reads the subject of an acknowledgement in any form, the preview's only with `preview`; None for others."""
    tokens = subject.split(b".")
    if len(tokens) in _LONG:
        tokens[2:4] = []
    elif len(tokens) != _TOKENS and not (preview and len(tokens) == _SHORT):
        return None
    sequence, number = tokens[5], tokens[6]
    if not (sequence.isdigit() and number.isdigit() and len(sequence) < 20 and len(number) < 20):
        return None
    stream, consumer = tokens[2].decode(errors="replace"), tokens[3].decode(errors="replace")
    short = b".".join(tokens[:2]) if len(tokens) == _SHORT else b""
    return AckTarget(stream, consumer, int(sequence), int(number), short)


def verb(payload: bytes) -> Verb:
    word, _, rest = payload.partition(b" ")
    match word:
        case word if word in DONE:
            return Verb(AckKind.ACK) if not rest else Verb(AckKind.NOTHING)
        case b"-NAK":
            return Verb(AckKind.NAK, delay=_delay(rest))
        case b"+WPI":
            return Verb(AckKind.PROGRESS)
        case b"+TERM":
            return Verb(AckKind.TERM, text=rest.decode(errors="replace"))
        case b"+NXT":
            return Verb(AckKind.NEXT, text=rest.decode(errors="replace"))
    return Verb(AckKind.NOTHING)


def _delay(text: bytes) -> int:
    """Returns nanoseconds; 0 for an invalid delay."""
    try:
        if text.strip().startswith(b"{"):
            value = json.loads(text).get("delay", 0)
            return value if type(value) is int and 0 < value < 1 << 62 else 0
        return max(parse_duration(text.decode()), 0) if text else 0
    except (ValueError, RecursionError, OverflowError):
        return 0
