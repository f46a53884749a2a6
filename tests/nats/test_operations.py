"""Operations besides publishing: what nats-server 2.9 was seen to accept, to answer and to log."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats import encoding
from stantools.nats.operations import (
    MAX_LINE,
    NEED_MORE,
    ConnectOperation,
    Err,
    IncompleteOperation,
    InfoOperation,
    MalformedOperation,
    Ok,
    Ping,
    Pong,
    Sub,
    Unsub,
    parse_answer,
    parse_operation,
    payload_too_large,
)

ACCEPTED: dict[bytes, Any] = {
    b"PING\r\n": Ping(),
    b"ping\n": Ping(),
    b"PINGxx yy\r\n": Ping(),
    b"PONG\r\n": Pong(),
    b"+OK\r\n": Ok(),
    b"+ok\r\n": Ok(),
    b"-ERR 'foo'\r\n": Err("'foo'"),
    b"INFO {}\r\n": InfoOperation({}),
    b'INFO {"a":[1]} \r\n': InfoOperation({"a": [1]}),
    b"SUB foo 1\r\n": Sub(b"foo", b"", b"1"),
    b"sub\tfoo.*  workers\tabc-.x \r\n": Sub(b"foo.*", b"workers", b"abc-.x"),
    b"SUB foo..bar 1\n": Sub(b"foo..bar", b"", b"1"),
    b"UNSUB 1\r\n": Unsub(b"1", 0),
    b"unsub a 0000010\r\n": Unsub(b"a", 10),
    b"UNSUB 1 x\r\n": Unsub(b"1", 0),
    b"UNSUB 1 0000000000001\r\n": Unsub(b"1", 0),
    b"CONNECT {}\r\n": ConnectOperation({}),
    b"CONNECT{}\r\n": ConnectOperation({}),
    b"CONNECT null\r\n": ConnectOperation({}),
    b'connect {"VERBOSE":true,"name":null,"protocol":1,"what":[{}]}\r\n': ConnectOperation(
        {"verbose": True, "protocol": 1}
    ),
    b'CONNECT {"user":"\xff","pass":"\\u00e9"}\n': ConnectOperation({"user": "\ufffd", "pass": "é"}),
}

UNKNOWN = "Unknown Protocol Operation"
LINE = "maximum control line exceeded"
REFUSED: dict[bytes, tuple[str, str]] = {
    b"\r\n": (UNKNOWN, "Client parser ERROR"),
    b"FOO\r\n": (UNKNOWN, "Client parser ERROR: proto='\"FOO\\r\"...'"),
    b"F": (UNKNOWN, "Client parser ERROR"),
    b"MSG foo 1 2\r\nhi\r\n": (UNKNOWN, "Client parser ERROR"),
    b"\xff\xfe\x00": (UNKNOWN, "Client parser ERROR"),
    b"SUB\r\n": (UNKNOWN, "Client parser ERROR"),
    b"SUBx": (UNKNOWN, "Client parser ERROR"),
    b"UNSUB\n": (UNKNOWN, "Client parser ERROR"),
    b"SUB \r\n": ("", "processSub Parse Error"),
    b"SUB foo\r\n": ("", 'processSub Parse Error: "foo"'),
    b"SUB foo a b c\r\n": ("", 'processSub Parse Error: "foo a b c"'),
    b"UNSUB \r\n": ("", "processUnsub Parse Error"),
    b"UNSUB 1 2 3\r\n": ("", 'processUnsub Parse Error: "1 2 3"'),
    b"PUB foo x\r\n": ("", 'processPub Bad or Missing Size: "foo x"'),
    b"PUB foo\r\n": ("", 'processPub Parse Error: "foo"'),
    b"PUB foo 2\r\nhixx": (UNKNOWN, "Client parser ERROR"),
    b"PUB\r\n": (UNKNOWN, "Client parser ERROR"),
    b"HPUB foo 5 2\r\n": ("", 'processHeaderPub Header Size larger then TotalSize: "foo 5 2"'),
    b"HPUB foo 5\r\n": ("", 'processHeaderPub Parse Error: "foo 5"'),
    b"HPUB foo x 2\r\n": ("", 'processHeaderPub Bad or Missing Header Size: "foo x 2"'),
    b"HPUB foo 2 x\r\n": ("", 'processHeaderPub Bad or Missing Total Size: "foo 2 x"'),
    b"CONNECT x\r\n": ("", "invalid character 'x' looking for beginning of value"),
    b"CONNECTX {}\r\n": ("", "invalid character 'X' looking for beginning of value"),
    b"CONNECT \r\n": ("", "unexpected end of JSON input"),
    b'CONNECT {"verbose":\r\n': ("", "unexpected end of JSON input"),
    b"CONNECT {} x\r\n": ("", "invalid character 'x' after top-level value"),
    b"CONNECT []\r\n": ("", "json: cannot unmarshal array into Go value of type server.ClientOpts"),
    b'CONNECT {"verbose":1}\r\n': (
        "",
        "json: cannot unmarshal number into Go struct field ClientOpts.verbose of type bool",
    ),
    b'CONNECT {"user":{}}\r\n': (
        "",
        "json: cannot unmarshal object into Go struct field ClientOpts.user of type string",
    ),
    b'CONNECT {"protocol":1.5}\r\n': (
        "",
        "json: cannot unmarshal number 1.5 into Go struct field ClientOpts.protocol of type int",
    ),
    b'CONNECT {"protocol":true}\r\n': (
        "",
        "json: cannot unmarshal bool into Go struct field ClientOpts.protocol of type int",
    ),
    b'CONNECT {"protocol":NaN}\r\n': ("", "invalid character 'N' looking for beginning of value"),
    b"CONNECT " + b"[" * 4000 + b"\r\n": ("", ""),
    b'CONNECT {"protocol":' + b"1" * 4000 + b"}\r\n": ("", "json: cannot unmarshal number"),
    b"INFO garbage\r\n": ("", "invalid character 'g' looking for beginning of value"),
    b"SUB " + b"a" * 5000: (LINE, LINE),
    b"SUB " + b" " * 5000: (LINE, LINE),
    b"CONNECT {" + b" " * 5000 + b"}\r\n": (LINE, LINE),
    b"PUB " + b"a" * 4097: (LINE, LINE),
}


def test_accepted() -> None:
    for data in ACCEPTED:
        assert parse_operation(b"..." + data + b"...", 3, len(data) + 6, 4096) == (ACCEPTED[data], 3 + len(data)), data
        assert parse_operation(bytearray(data), 0, len(data), 4096) == (ACCEPTED[data], len(data)), data


def test_incomplete() -> None:
    for data in ACCEPTED:
        for size in range(1, len(data)):
            assert parse_operation(memoryview(data), 0, size, 4096) == (NEED_MORE, 0), data


def test_refused() -> None:
    for data in REFUSED:
        answer, log = REFUSED[data]
        event, behind = parse_operation(data, 0, len(data), 4096)
        assert isinstance(event, MalformedOperation), data
        assert event.answer == answer, data
        assert event.log.startswith(log), data
        assert event.closed == ("Maximum Control Line Exceeded" if answer == LINE else "Protocol Violation"), data
        assert behind == 0, data


def test_deep_json_is_refused() -> None:
    data = b"CONNECT " + b"[" * 100_000 + b"\r\n"
    event, _ = parse_operation(data, 0, len(data), 1 << 20)
    assert isinstance(event, MalformedOperation)


def test_longest_line() -> None:
    fits = b"SUB " + b"a" * 4094 + b" 1\r\n"
    assert isinstance(parse_operation(fits, 0, len(fits), 4096)[0], Sub)
    longer = b"SUB " + b"a" * 4095 + b" 1\r\n"
    assert parse_operation(longer, 0, 4 + 4096, 4096)[0] == NEED_MORE
    assert isinstance(parse_operation(longer, 0, 4 + 4097, 4096)[0], MalformedOperation)
    assert isinstance(parse_operation(longer, 0, len(longer), 4096)[0], MalformedOperation)


def test_logs_show_nothing_unprintable() -> None:
    event, _ = parse_operation(b'SUB a\x1b[31m"\\\xff\r\n', 0, 15, 4096)
    assert event == MalformedOperation("", 'processSub Parse Error: "a\\x1b[31m\\"\\\\\ufffd"')


def test_payload_too_large() -> None:
    event = payload_too_large(2_000_000, 1 << 20)
    assert event.answer == "Maximum Payload Violation"
    assert event.log == "maximum payload exceeded: 2000000 vs 1048576"
    assert event.closed == "Maximum Message Payload Exceeded"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([b"", b"CONNECT ", b"SUB ", b"UNSUB ", b"INFO ", b"-ERR ", b"PUB ", b"HPUB ", b"PING"]),
    st.binary(max_size=60)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(), st.lists).map(
        lambda value: json.dumps({"user": value, "Verbose": value}).encode()
    ),
    st.sampled_from([b"", b"\r\n", b"\n"]),
    st.integers(0, 100),
)
def test_any_bytes(name: bytes, rest: bytes, end: bytes, limit: int) -> None:
    data = name + rest + end
    for parse in (parse_operation, parse_answer):
        event, behind = parse(data, 0, len(data), limit)
        if isinstance(event, IncompleteOperation | MalformedOperation):
            assert behind == 0
        else:
            assert 0 < behind <= len(data)
            assert data[behind - 1 : behind] == b"\n"


def test_what_a_server_says() -> None:
    assert parse_answer(b'INFO {"proto":1} \r\n', 0, 19, MAX_LINE) == (InfoOperation({"proto": 1}), 19)
    assert parse_answer(b"-ERR 'Invalid Subject'\r\n", 0, 24, 4096)[0] == Err("'Invalid Subject'")
    assert isinstance(parse_answer(b"SUB foo 1\r\n", 0, 11, 4096)[0], MalformedOperation)
    assert isinstance(parse_answer(b"CONNECT {}\r\n", 0, 12, 4096)[0], MalformedOperation)


def test_what_a_client_sends_is_understood() -> None:
    data = encoding.subscribe(b"foo", 3) + encoding.subscribe(b"a.>", 4, b"q") + encoding.unsubscribe(3)
    data += encoding.unsubscribe(4, 10) + encoding.connect({"verbose": False, "name": "ü"}) + encoding.PING
    at, events = 0, []
    while at < len(data):
        event, at = parse_operation(data, at, len(data), 4096)
        events.append(event)
    assert events == [
        Sub(b"foo", b"", b"3"),
        Sub(b"a.>", b"q", b"4"),
        Unsub(b"3", 0),
        Unsub(b"4", 10),
        ConnectOperation({"verbose": False, "name": "ü"}),
        Ping(),
    ]
    assert encoding.publish(b"foo", b"hi") == b"PUB foo 2\r\nhi\r\n"
    header = b"NATS/1.0\r\n\r\n"
    assert encoding.publish(b"foo", b"hi", b"re", header) == b"HPUB foo re 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
