"""Why connections end, in the words of logs and monitoring."""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Why a connection was closed."""

    CLIENT_CLOSED = "Client Closed"
    AUTHENTICATION_TIMEOUT = "Authentication Timeout"
    AUTHENTICATION_FAILURE = "Authentication Failure"
    TLS_HANDSHAKE = "TLS Handshake Failure"
    SLOW_PENDING = "Slow Consumer (Pending Bytes)"
    SLOW_DEADLINE = "Slow Consumer (Write Deadline)"
    WRITE_ERROR = "Write Error"
    READ_ERROR = "Read Error"
    PARSE_ERROR = "Parse Error"
    STALE = "Stale Connection"
    VIOLATION = "Protocol Violation"
    BAD_VERSION = "Bad Client Protocol Version"
    MAX_CONNECTIONS = "Maximum Connections Exceeded"
    MAX_PAYLOAD = "Maximum Message Payload Exceeded"
    MAX_CONTROL_LINE = "Maximum Control Line Exceeded"
    SERVER_SHUTDOWN = "Server Shutdown"
    EXPIRED = "Credentials Revoked"
    NO_RESPONDERS = "No Responders Requires Headers"
    INTERNAL = "Internal Client"
