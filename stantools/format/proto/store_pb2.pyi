from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW_ONLY: _ClassVar[StartPosition]
    LAST_RECEIVED: _ClassVar[StartPosition]
    TIME_DELTA_START: _ClassVar[StartPosition]
    SEQUENCE_START: _ClassVar[StartPosition]
    FIRST: _ClassVar[StartPosition]
NEW_ONLY: StartPosition
LAST_RECEIVED: StartPosition
TIME_DELTA_START: StartPosition
SEQUENCE_START: StartPosition
FIRST: StartPosition

class ServerInfo(_message.Message):
    __slots__ = ("cluster_id", "discovery", "publish", "subscribe", "unsubscribe", "close", "sub_close", "acks_subs", "node_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SUB_CLOSE_FIELD_NUMBER: _ClassVar[int]
    ACKS_SUBS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    discovery: bytes
    publish: bytes
    subscribe: bytes
    unsubscribe: bytes
    close: bytes
    sub_close: bytes
    acks_subs: bytes
    node_id: bytes
    def __init__(self, cluster_id: _Optional[bytes] = ..., discovery: _Optional[bytes] = ..., publish: _Optional[bytes] = ..., subscribe: _Optional[bytes] = ..., unsubscribe: _Optional[bytes] = ..., close: _Optional[bytes] = ..., sub_close: _Optional[bytes] = ..., acks_subs: _Optional[bytes] = ..., node_id: _Optional[bytes] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("id", "hb_inbox", "conn_id", "protocol", "ping_interval", "ping_max_out")
    ID_FIELD_NUMBER: _ClassVar[int]
    HB_INBOX_FIELD_NUMBER: _ClassVar[int]
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_MAX_OUT_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    hb_inbox: bytes
    conn_id: bytes
    protocol: int
    ping_interval: int
    ping_max_out: int
    def __init__(self, id: _Optional[bytes] = ..., hb_inbox: _Optional[bytes] = ..., conn_id: _Optional[bytes] = ..., protocol: _Optional[int] = ..., ping_interval: _Optional[int] = ..., ping_max_out: _Optional[int] = ...) -> None: ...

class ClientDelete(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class SubState(_message.Message):
    __slots__ = ("id", "client_id", "q_group", "inbox", "ack_inbox", "max_in_flight", "ack_wait_in_secs", "durable_name", "last_sent", "is_durable", "is_closed")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    Q_GROUP_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_IN_SECS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_SENT_FIELD_NUMBER: _ClassVar[int]
    IS_DURABLE_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    id: int
    client_id: bytes
    q_group: bytes
    inbox: bytes
    ack_inbox: bytes
    max_in_flight: int
    ack_wait_in_secs: int
    durable_name: bytes
    last_sent: int
    is_durable: bool
    is_closed: bool
    def __init__(self, id: _Optional[int] = ..., client_id: _Optional[bytes] = ..., q_group: _Optional[bytes] = ..., inbox: _Optional[bytes] = ..., ack_inbox: _Optional[bytes] = ..., max_in_flight: _Optional[int] = ..., ack_wait_in_secs: _Optional[int] = ..., durable_name: _Optional[bytes] = ..., last_sent: _Optional[int] = ..., is_durable: bool = ..., is_closed: bool = ...) -> None: ...

class SubStateDelete(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class SubStateUpdate(_message.Message):
    __slots__ = ("id", "seqno")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    id: int
    seqno: int
    def __init__(self, id: _Optional[int] = ..., seqno: _Optional[int] = ...) -> None: ...

class MsgProto(_message.Message):
    __slots__ = ("sequence", "subject", "reply", "data", "timestamp", "redelivered", "redelivery_count", "crc32")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    subject: bytes
    reply: bytes
    data: bytes
    timestamp: int
    redelivered: bool
    redelivery_count: int
    crc32: int
    def __init__(self, sequence: _Optional[int] = ..., subject: _Optional[bytes] = ..., reply: _Optional[bytes] = ..., data: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., redelivered: bool = ..., redelivery_count: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class RaftOperation(_message.Message):
    __slots__ = ("op_type", "publish_batch", "sub", "unsub", "sub_sent_ack", "client_connect", "client_disconnect", "channel", "channel_id")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUBLISH: _ClassVar[RaftOperation.Type]
        SUBSCRIBE: _ClassVar[RaftOperation.Type]
        REMOVE_SUBSCRIPTION: _ClassVar[RaftOperation.Type]
        CLOSE_SUBSCRIPTION: _ClassVar[RaftOperation.Type]
        SEND_AND_ACK: _ClassVar[RaftOperation.Type]
        CONNECT: _ClassVar[RaftOperation.Type]
        DISCONNECT: _ClassVar[RaftOperation.Type]
        DELETE_CHANNEL: _ClassVar[RaftOperation.Type]
    PUBLISH: RaftOperation.Type
    SUBSCRIBE: RaftOperation.Type
    REMOVE_SUBSCRIPTION: RaftOperation.Type
    CLOSE_SUBSCRIPTION: RaftOperation.Type
    SEND_AND_ACK: RaftOperation.Type
    CONNECT: RaftOperation.Type
    DISCONNECT: RaftOperation.Type
    DELETE_CHANNEL: RaftOperation.Type
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_BATCH_FIELD_NUMBER: _ClassVar[int]
    SUB_FIELD_NUMBER: _ClassVar[int]
    UNSUB_FIELD_NUMBER: _ClassVar[int]
    SUB_SENT_ACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CONNECT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    op_type: RaftOperation.Type
    publish_batch: Batch
    sub: AddSubscription
    unsub: UnsubscribeRequest
    sub_sent_ack: SubSentAndAck
    client_connect: AddClient
    client_disconnect: CloseRequest
    channel: bytes
    channel_id: int
    def __init__(self, op_type: _Optional[_Union[RaftOperation.Type, str]] = ..., publish_batch: _Optional[_Union[Batch, _Mapping]] = ..., sub: _Optional[_Union[AddSubscription, _Mapping]] = ..., unsub: _Optional[_Union[UnsubscribeRequest, _Mapping]] = ..., sub_sent_ack: _Optional[_Union[SubSentAndAck, _Mapping]] = ..., client_connect: _Optional[_Union[AddClient, _Mapping]] = ..., client_disconnect: _Optional[_Union[CloseRequest, _Mapping]] = ..., channel: _Optional[bytes] = ..., channel_id: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[MsgProto]
    def __init__(self, messages: _Optional[_Iterable[_Union[MsgProto, _Mapping]]] = ...) -> None: ...

class AddSubscription(_message.Message):
    __slots__ = ("request", "ack_inbox", "id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    request: SubscriptionRequest
    ack_inbox: bytes
    id: int
    def __init__(self, request: _Optional[_Union[SubscriptionRequest, _Mapping]] = ..., ack_inbox: _Optional[bytes] = ..., id: _Optional[int] = ...) -> None: ...

class SubSentAndAck(_message.Message):
    __slots__ = ("channel", "ack_inbox", "sent", "ack")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    channel: bytes
    ack_inbox: bytes
    sent: _containers.RepeatedScalarFieldContainer[int]
    ack: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, channel: _Optional[bytes] = ..., ack_inbox: _Optional[bytes] = ..., sent: _Optional[_Iterable[int]] = ..., ack: _Optional[_Iterable[int]] = ...) -> None: ...

class AddClient(_message.Message):
    __slots__ = ("request", "refresh")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    request: ConnectRequest
    refresh: bool
    def __init__(self, request: _Optional[_Union[ConnectRequest, _Mapping]] = ..., refresh: bool = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("client_id", "heartbeat_inbox", "protocol", "conn_id", "ping_interval", "ping_max_out")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INBOX_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_MAX_OUT_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    heartbeat_inbox: bytes
    protocol: int
    conn_id: bytes
    ping_interval: int
    ping_max_out: int
    def __init__(self, client_id: _Optional[bytes] = ..., heartbeat_inbox: _Optional[bytes] = ..., protocol: _Optional[int] = ..., conn_id: _Optional[bytes] = ..., ping_interval: _Optional[int] = ..., ping_max_out: _Optional[int] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    def __init__(self, client_id: _Optional[bytes] = ...) -> None: ...

class SubscriptionRequest(_message.Message):
    __slots__ = ("client_id", "subject", "q_group", "inbox", "max_in_flight", "ack_wait_in_secs", "durable_name", "start_position", "start_sequence", "start_time_delta")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    Q_GROUP_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_IN_SECS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_DELTA_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    subject: bytes
    q_group: bytes
    inbox: bytes
    max_in_flight: int
    ack_wait_in_secs: int
    durable_name: bytes
    start_position: StartPosition
    start_sequence: int
    start_time_delta: int
    def __init__(self, client_id: _Optional[bytes] = ..., subject: _Optional[bytes] = ..., q_group: _Optional[bytes] = ..., inbox: _Optional[bytes] = ..., max_in_flight: _Optional[int] = ..., ack_wait_in_secs: _Optional[int] = ..., durable_name: _Optional[bytes] = ..., start_position: _Optional[_Union[StartPosition, str]] = ..., start_sequence: _Optional[int] = ..., start_time_delta: _Optional[int] = ...) -> None: ...

class UnsubscribeRequest(_message.Message):
    __slots__ = ("client_id", "subject", "inbox", "durable_name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    subject: bytes
    inbox: bytes
    durable_name: bytes
    def __init__(self, client_id: _Optional[bytes] = ..., subject: _Optional[bytes] = ..., inbox: _Optional[bytes] = ..., durable_name: _Optional[bytes] = ...) -> None: ...

class RaftSnapshot(_message.Message):
    __slots__ = ("clients", "channels", "padding")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot]
    padding: bytes
    def __init__(self, clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., channels: _Optional[_Iterable[_Union[ChannelSnapshot, _Mapping]]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class ChannelSnapshot(_message.Message):
    __slots__ = ("channel", "first", "last", "subscriptions", "next_sub_id", "channel_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SUB_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    channel: bytes
    first: int
    last: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionSnapshot]
    next_sub_id: int
    channel_id: int
    def __init__(self, channel: _Optional[bytes] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionSnapshot, _Mapping]]] = ..., next_sub_id: _Optional[int] = ..., channel_id: _Optional[int] = ...) -> None: ...

class SubscriptionSnapshot(_message.Message):
    __slots__ = ("state", "acks_pending")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACKS_PENDING_FIELD_NUMBER: _ClassVar[int]
    state: SubState
    acks_pending: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, state: _Optional[_Union[SubState, _Mapping]] = ..., acks_pending: _Optional[_Iterable[int]] = ...) -> None: ...
