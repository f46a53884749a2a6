"""The command line: syntax, types, sizes, durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.catalogue import SECTIONS
from broker.config.flags import FlagError, parse_flags, parse_size
from broker.config.values import UNITS, ConfigurationError, parse_go_duration
from stantools.notation import format_go_duration
from stantools.server_options import ValueType

NAMES = [name for section in SECTIONS for _, option in section.options for name in option.flags]
ALL = [named for section in SECTIONS for named in section.options if named.option.flags]


def problem(*argv: str) -> str:
    with pytest.raises(FlagError) as caught:
        parse_flags(argv)
    return caught.value.message


def test_ways_to_write_an_option() -> None:
    for argv in (["-mc", "7"], ["--mc", "7"], ["-mc=7"], ["--max_channels=7"], ["-mc", "5", "-max_channels", "7"]):
        assert parse_flags(argv).settings == {"limits.max_channels": 7}
    assert parse_flags(["-SD"]).settings == {"log.streaming_debug": True}
    assert parse_flags(["-SD=false"]).settings == {"log.streaming_debug": False}
    assert parse_flags(["-SD", "--", "-SV"]).rest == ("-SV",)
    assert parse_flags(["-SD", "false", "-SV"]).rest == ("false", "-SV")
    assert parse_flags(["-"]).rest == ("-",)


def test_options_that_stand_for_others() -> None:
    assert parse_flags(["-SDV"]).settings == {"SDV": True, "log.streaming_debug": True, "log.streaming_trace": True}
    assert parse_flags(["-SD", "-SDV=false"]).settings["log.streaming_debug"] is False
    found = parse_flags(["-DVV"]).settings
    assert found["log.nats_debug"] and found["log.nats_trace"] and found["nats.trace_verbose"]
    assert parse_flags(["-VV"]).settings.get("log.nats_debug") is None


def test_errors() -> None:
    assert problem("-x") == "flag provided but not defined: -x"
    assert problem("--x=5") == "flag provided but not defined: -x"
    assert problem("-mc", "abc") == 'invalid value "abc" for flag -mc: parse error'
    assert problem("-mc", "9" * 30) == f'invalid value "{"9" * 30}" for flag -mc: value out of range'
    assert problem("-mc", "9" * 3000).endswith("value out of range")
    assert problem("-SDV=maybe") == 'invalid boolean value "maybe" for -SDV: parse error'
    assert problem("-SDV=") == 'invalid boolean value "" for -SDV: parse error'
    assert problem("-sl") == "flag needs an argument: -sl"
    assert problem("-hbi", "10") == 'invalid value "10" for flag -hbi: parse error'
    assert problem("-ma", "1d") == 'invalid value "1d" for flag -ma: parse error'
    for syntax in ("---x", "--=", "-=x"):
        assert problem(syntax) == f"bad flag syntax: {syntax}"


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *(("5", 5), ("-5", -5), ("+5", 5), ("0x10", 16), ("0X1f", 31), ("0b11", 3), ("0o17", 15), ("010", 8), ("0", 0)),
        *(("1_000", 1000), ("0x1_0", 16), ("0x_10", 16), ("0_10", 8), ("-0x10", -16), ("00", 0)),
        *((each, None) for each in ("08", "_1", "1__0", "1_", "0_", "0x", "", " 5", "5 ", "1.5", "1e3", "٣")),
    ],
)
def test_integers(written: str, number: int | None) -> None:
    if number is None:
        assert problem("-p", written).endswith("parse error")
    else:
        assert parse_flags(["-p", written]).settings == {"nats.port": number}


@pytest.mark.parametrize("word", ["1", "0", "t", "f", "T", "F", "true", "false", "TRUE", "FALSE", "True", "False"])
def test_bools(word: str) -> None:
    assert parse_flags([f"--encrypt={word}"]).settings == {"encrypt": word in ("1", "t", "T", "true", "TRUE", "True")}


@pytest.mark.parametrize(
    ("written", "size"),
    [("1024", 1024), ("10MB", 10 << 20), ("1k", 1000), ("1kb", 1024), ("-1", -1), (" 5 ", 5), ("2GiB", 2 << 30)],
)
def test_sizes(written: str, size: int) -> None:
    assert parse_size("mb", written) == size


def test_bad_sizes() -> None:
    for written, said in (
        ("abc", "mb should be a size, got 'abc'"),
        ("10XB", "mb should be a size, got '10XB'"),
        ("true", "mb should be a size, got 'true'"),
        ("", "mb should be a size, got ''"),
        ("[a]", "mb should be a size, got '[a]'"),
        ("1.5", "mb should be a size, got '1.5'"),
        ("1.5MB", "mb should be a size, got '1.5MB'"),
    ):
        line = parse_flags(["-mb", written])
        with pytest.raises(ConfigurationError) as caught:
            line.sizes()
        assert caught.value.message == said


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_and_sizes_round_trip(number: int) -> None:
    for written in (str(number), hex(number), oct(number), bin(number)):
        assert parse_flags(["-p", written]).settings["nats.port"] == number
    assert parse_size("mb", str(number)) == number


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_durations_round_trip(nanoseconds: int) -> None:
    assert parse_go_duration(format_go_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("1h2m3s", 3_723_000_000_000),
        ("-250ms", -250_000_000),
        ("+1us", 1000),
        ("1µs", 1000),
        ("1.9ns", 1),
    ],
)
def test_durations(written: str, nanoseconds: int) -> None:
    assert parse_go_duration(written) == nanoseconds


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("10", 'time: missing unit in duration "10"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("", 'time: invalid duration ""'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("-", 'time: invalid duration "-"'),
        ("1s2", 'time: missing unit in duration "1s2"'),
        ("1.2.3s", 'time: missing unit in duration "1.2.3s"'),
        ("300000h", None),
        ("9999999h", 'time: invalid duration "9999999h"'),
    ],
)
def test_bad_durations(written: str, said: str | None) -> None:
    if said is None:
        assert parse_go_duration(written) > 0
        return
    with pytest.raises(ConfigurationError) as caught:
        parse_go_duration(written)
    assert caught.value.message == said


@given(st.text(max_size=20) | st.lists(st.sampled_from([*"0123456789.-+", *UNITS]), max_size=20).map("".join))
def test_any_duration(written: str) -> None:
    try:
        assert -(1 << 63) <= parse_go_duration(written) < 1 << 63
    except ConfigurationError as error:
        assert error.message.startswith("time: ")


@given(st.lists(st.text(max_size=6) | st.sampled_from([f"-{name}" for name in NAMES]), max_size=6))
def test_any_command_line(argv: list[str]) -> None:
    try:
        parse_flags(argv).sizes()
    except (FlagError, ConfigurationError) as error:
        assert error.message


def test_every_option_is_there_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    values = {
        ValueType.BOOL: "true",
        ValueType.INT: "5",
        ValueType.DURATION: "5s",
        ValueType.SIZE: "5KB",
        ValueType.STRING: "x",
        ValueType.LIST: "x, y",
        ValueType.ADDRESS: "nats://h:1",
    }
    for flag in ALL:
        for name in flag.option.flags:
            line = parse_flags([f"--{name}={values[flag.option.value_type]}"])
            line.sizes()
            assert flag.setting in line.settings
