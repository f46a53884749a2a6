"""The streaming part of a file: every key and alias, types, errors."""

from __future__ import annotations

import pytest

from broker.config.catalogue import SECTIONS
from broker.config.file_reader import read_streaming
from broker.config.grammar import parse
from broker.config.settings import FileContent
from broker.config.values import ConfigurationError
from stantools.server_options import ServerOption, ValueType
from stantools.store.limits import PatternLimits


def read(source: str) -> FileContent:
    return read_streaming(parse(source, "F", environ={}))


def problem(source: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(source)
    return caught.value.message


VALUES = {
    ValueType.STRING: ('"x"', "x"),
    ValueType.BOOL: ("true", True),
    ValueType.INT: ("1KB", 1024),
    ValueType.SIZE: ("1KB", 1024),
    ValueType.DURATION: ('"1m30s"', 90_000_000_000),
    ValueType.LIST: ('["x", y]', ("x", "y")),
}
ENTRIES = [
    (section.path, name, setting, option)
    for section in SECTIONS
    for setting, option in section.options
    if option.value_type is not ValueType.MAP
    and section.path.startswith("streaming")
    and section.path != "streaming.limits.channels"
    for name in option.keys
]


@pytest.mark.parametrize(("path", "name", "setting", "option"), ENTRIES)
def test_every_key_and_alias(path: str, name: str, setting: str, option: ServerOption) -> None:
    written, value = VALUES[option.value_type]
    if setting == "store":
        written, value = "file", "file"
    source = f"{name.upper()}: {written}"
    for part in reversed(path.split(".")):
        source = f"{part} {{ {source} }}"
    found = read(source).settings
    assert found[setting] == value
    wrong = "x" if option.value_type in (ValueType.INT, ValueType.SIZE) else "5"
    expected = {ValueType.DURATION: "string", ValueType.SIZE: "int64"}.get(option.value_type, option.value_type.value)
    source = f"{name}: {wrong}"
    for part in reversed(path.split(".")):
        source = f"{part} {{ {source} }}"
    got = "string" if wrong == "x" else "int64"
    assert problem(source).partition(": ")[2] == f'parameter "{name}" value is expected to be {expected}, got {got}'


def test_without_a_section() -> None:
    assert read("cluster_id: a\nport: 5\nunknown: 5").settings == {"cluster_id": "a"}
    assert read("cluster_id: a\nStreaming { Max_Msgs: 5, store_limits { Max_Msgs: 7, foo: 1 } }").settings == {
        "limits.max_msgs": 7
    }


def test_limits_of_channels() -> None:
    found = read("""
        streaming { limits { mm: 5, channels {
            "audit.>" { max_msgs: 0, max_age: "0s" }
            metrics   { max_bytes: 64MB, max_inactivity: "1h" }
            "s.*"     { mi: "15m", msu: 1, mb: -1, zork: x }
            empty {}
        } } }""")
    assert found.settings["limits.max_msgs"] == 5
    assert found.settings["limits.channels"] == {
        "audit.>": PatternLimits(max_msgs=0, max_age_ns=0),
        "metrics": PatternLimits(max_bytes=64 << 20, max_inactivity_ns=3_600_000_000_000),
        "s.*": PatternLimits(max_inactivity_ns=900_000_000_000, max_subs=1, max_bytes=-1),
        "empty": PatternLimits(),
    }


def test_errors() -> None:
    assert problem("streaming: foo") == "F:1:0: expected a map, got foo"
    assert problem("tls: 5") == "F:1:0: expected a map, got 5"
    assert problem("limits { channels: x }") == "F:1:9: expected a map, got x"
    assert problem("limits { channels { a: x } }") == "F:1:20: expected a map, got x"
    assert problem('limits { channels { "foo..bar" {} } }') == 'F:1:21: invalid channel name "foo..bar"'
    assert problem("store: redis") == "F:1:0: store is one of MEMORY, FILE, SQL, JETSTREAM, not redis"
    duration = "F:1:0: error parsing hb_interval: time:"
    assert problem('hb_interval: "10"') == f'{duration} missing unit in duration "10"'
    assert problem('hb_interval: "1d"') == f'{duration} unknown unit "d" in duration "1d"'
    assert problem("hb_interval: 10m") == 'F:1:0: parameter "hb_interval" value is expected to be string, got int64'
    assert problem('cluster { peers: "b,c" }') == 'F:1:10: parameter "peers" value is expected to be slice, got string'
    assert "slice of string" in problem("cluster { peers: [1, 2 ] }")
    assert problem("store: redis\nid: 5").splitlines() == [
        "F:1:0: store is one of MEMORY, FILE, SQL, JETSTREAM, not redis",
        'F:2:1: parameter "id" value is expected to be string, got int64',
    ]


def test_a_cluster_switches_clustering_on() -> None:
    assert read("streaming { cluster {} }").settings == {"cluster.clustered": True}
