"""Messages among servers, which clients' subjects may see as well (streaming-protocol.md section 3)."""

from __future__ import annotations

from broker.streaming.requests import decode
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol


def is_control(payload: bytes) -> bool:
    """Tells whether a payload, which is not what was expected, is a control message: these are dropped silently."""
    try:
        decode(protocol.CtrlMsg, payload)
    except gogo.DecodeError:
        return False
    return True
