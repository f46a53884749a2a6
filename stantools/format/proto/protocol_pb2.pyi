from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PubMsg(_message.Message):
    __slots__ = ("client_id", "guid", "subject", "reply", "data", "conn_id", "sha256")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    guid: bytes
    subject: bytes
    reply: bytes
    data: bytes
    conn_id: bytes
    sha256: bytes
    def __init__(self, client_id: _Optional[bytes] = ..., guid: _Optional[bytes] = ..., subject: _Optional[bytes] = ..., reply: _Optional[bytes] = ..., data: _Optional[bytes] = ..., conn_id: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PubAck(_message.Message):
    __slots__ = ("guid", "error")
    GUID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    error: bytes
    def __init__(self, guid: _Optional[bytes] = ..., error: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("subject", "sequence")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    subject: bytes
    sequence: int
    def __init__(self, subject: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("pub_prefix", "sub_requests", "unsub_requests", "close_requests", "error", "sub_close_requests", "ping_requests", "ping_interval", "ping_max_out", "protocol", "public_key")
    PUB_PREFIX_FIELD_NUMBER: _ClassVar[int]
    SUB_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNSUB_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUB_CLOSE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_MAX_OUT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    pub_prefix: bytes
    sub_requests: bytes
    unsub_requests: bytes
    close_requests: bytes
    error: bytes
    sub_close_requests: bytes
    ping_requests: bytes
    ping_interval: int
    ping_max_out: int
    protocol: int
    public_key: bytes
    def __init__(self, pub_prefix: _Optional[bytes] = ..., sub_requests: _Optional[bytes] = ..., unsub_requests: _Optional[bytes] = ..., close_requests: _Optional[bytes] = ..., error: _Optional[bytes] = ..., sub_close_requests: _Optional[bytes] = ..., ping_requests: _Optional[bytes] = ..., ping_interval: _Optional[int] = ..., ping_max_out: _Optional[int] = ..., protocol: _Optional[int] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("conn_id",)
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    conn_id: bytes
    def __init__(self, conn_id: _Optional[bytes] = ...) -> None: ...

class PingResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: bytes
    def __init__(self, error: _Optional[bytes] = ...) -> None: ...

class SubscriptionResponse(_message.Message):
    __slots__ = ("ack_inbox", "error")
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ack_inbox: bytes
    error: bytes
    def __init__(self, ack_inbox: _Optional[bytes] = ..., error: _Optional[bytes] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: bytes
    def __init__(self, error: _Optional[bytes] = ...) -> None: ...

class CtrlMsg(_message.Message):
    __slots__ = ("msg_type", "server_id", "data", "ref_id")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUB_UNSUBSCRIBE: _ClassVar[CtrlMsg.Type]
        SUB_CLOSE: _ClassVar[CtrlMsg.Type]
        CONN_CLOSE: _ClassVar[CtrlMsg.Type]
        FT_HEARTBEAT: _ClassVar[CtrlMsg.Type]
        PARTITIONING: _ClassVar[CtrlMsg.Type]
    SUB_UNSUBSCRIBE: CtrlMsg.Type
    SUB_CLOSE: CtrlMsg.Type
    CONN_CLOSE: CtrlMsg.Type
    FT_HEARTBEAT: CtrlMsg.Type
    PARTITIONING: CtrlMsg.Type
    MSG_TYPE_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REF_ID_FIELD_NUMBER: _ClassVar[int]
    msg_type: CtrlMsg.Type
    server_id: bytes
    data: bytes
    ref_id: bytes
    def __init__(self, msg_type: _Optional[_Union[CtrlMsg.Type, str]] = ..., server_id: _Optional[bytes] = ..., data: _Optional[bytes] = ..., ref_id: _Optional[bytes] = ...) -> None: ...
