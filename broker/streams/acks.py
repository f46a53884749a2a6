"""What clients say of messages: acknowledgements and the subjects they come on.

Facts: jetstream-server.md sections 14 and 22.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Final

from stantools.notation import parse_duration

PREFIX: Final = b"$JS.ACK."
#: Payloads that say that a message is done with.
DONE: Final = (b"+ACK", b"", b"+OK")
#: Tokens of a subject: prefix, stream, consumer, deliveries, stream and consumer sequence, time, pending.
_TOKENS: Final = 9
#: With domain and account behind the prefix.
_LONG: Final = (11, 12)
#: Of the preview, which knows neither time nor pending.
_SHORT: Final = 7


class AckKind(enum.Enum):
    """What is said of a message."""

    ACK = enum.auto()
    NAK = enum.auto()
    PROGRESS = enum.auto()
    TERM = enum.auto()
    NEXT = enum.auto()
    NOTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Verb:
    """What is said of a message."""

    kind: AckKind  #: what
    delay: int = 0  #: with NAK: nanoseconds until it comes again
    text: str = ""  #: with TERM the reason, with NEXT the body of a request


@dataclass(frozen=True, slots=True)
class AckTarget:
    """Which message of which consumer is meant."""

    stream: str  #: name of the stream
    consumer: str  #: name of the consumer
    sequence: int  #: stream sequence
    number: int  #: consumer sequence
    short: bytes = b""  #: how a subject begins that ends with these; empty for one of today


def numbers(subject: bytes) -> tuple[bytes, bytes, int, int] | None:
    """Reads the subject of an acknowledgement in its usual form.

    Returns:
        Stream, consumer, stream sequence and consumer sequence; None if it has another form.
    """
    tokens = subject.split(b".")
    if len(tokens) != _TOKENS:
        return None
    sequence, number = tokens[5], tokens[6]
    if not (sequence.isdigit() and number.isdigit() and len(sequence) < 20 and len(number) < 20):
        return None
    return tokens[2], tokens[3], int(sequence), int(number)


def place(subject: bytes, *, preview: bool = False) -> AckTarget | None:
    """Reads the subject of an acknowledgement, which may be one of the preview; None if it is none."""
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
    """Reads the payload of an acknowledgement."""
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
    """Nanoseconds; what is no delay is none."""
    try:
        if text.strip().startswith(b"{"):
            value = json.loads(text).get("delay", 0)
            return value if type(value) is int and 0 < value < 1 << 62 else 0
        return max(parse_duration(text.decode()), 0) if text else 0
    except (ValueError, RecursionError, OverflowError):
        return 0
