"""The grammar: values, separators, variables, includes, errors; nothing but the documented error for any text."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.config.grammar import MAX_DEPTH, parse, parse_file
from broker.config.values import ConfigNode, ConfigurationError, kind, text
from stantools.format.quoting import quote


def plain(value: Any) -> Any:
    """A value without positions."""
    if isinstance(value, ConfigNode):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def values(source: str, **environ: str) -> dict[str, Any]:
    found: dict[str, Any] = plain(parse(source, "F", environ=environ))
    return found


def problem(source: str, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(source, "F", environ=environ)
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("a: 5", 5),
        ("a = -5", -5),
        ("a 5", 5),
        ("a:\t5\r\n", 5),
        ("'a' 1.5", 1.5),
        ('"a": -1.5', -1.5),
        ("a: 500k", 500_000),
        ("a: 2GB", 2 * 1024**3),
        ("a: 16MB", 16 * 1024**2),
        ("a: 1kib", 1024),
        ("a: 1Ki", 1024),
        ("a: 1m", 1_000_000),
        ("a: 1T", 10**12),
        ("a: 1p", 10**15),
        ("a: 1eb", 1 << 60),
        ("a: 10m", 10_000_000),
        # Keys and passwords that begin as a size does.
        *(
            (f"a: {word}", word)
            for word in ("8m4dwr", "0K1abc", "5e7bcd-abc10", "1m30s", "8gix", "1kib2", "5k.", "1e5")
        ),
        ("a: yes", True),
        ("a: TRUE", True),
        ("a: on", True),
        ("a: oFF", False),
        ('a: "true"', "true"),
        ("a: truex", "truex"),
        ("a: 24h", "24h"),
        ("a: 10s", "10s"),
        ("a: 1h30m", "1h30m"),
        ("a: 4222x", "4222x"),
        ("a: 10mx", "10mx"),
        ("a: 127.0.0.1:4222", "127.0.0.1:4222"),
        ("a: 127.0.0.1", "127.0.0.1"),
        ("a: 2020-01-02T03:04:05Z", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (r'a: "x\x41\t\n\r\"\\"', 'xA\t\n\r"\\'),
        (r"a: 'x\n'", r"x\n"),
        ('a: "x\ny"', "x\ny"),
        (r"a: x\x41", "xA"),
        ("a: foo#bar // c", "foo#bar"),
        ("a: foo//bar", "foo//bar"),
        ("a: (\nfoo\n bar\n)\n", "\nfoo\n bar\n"),
        ("a: [1, 2 ]", [1, 2]),
        ("a: [b\nc # x\n// y\n 'd']", ["b", "c", "d"]),
        ("a: [[b],[{c: d}]]", [["b"], [{"c": "d"}]]),
        ("a: []", []),
        ("a {}", {}),
        ("a {b: 1, c: 2; d 3\n e = 4 }", {"b": 1, "c": 2, "d": 3, "e": 4}),
        ("a {\n b:\n\n 3 }", {"b": 3}),
        ("a { foo.*: 1, foo.>: 2, a-b: 3, }", {"foo.*": 1, "foo.>": 2, "a-b": 3}),
        ('{ "a": 5 }', 5),
        ("a: 1\na: 2", 2),
        ("a: $2a$10$abc", "$2a$10$abc"),
        ("a: \N{SNOWMAN}", "\N{SNOWMAN}"),
        ("a: x\0y", "x"),
    ],
)
def test_values(source: str, value: Any) -> None:
    assert values(source) == {"a": value}


def test_separators() -> None:
    assert values("port = 4222; host = 127.0.0.1\nb: 1, c: 2 // x\n# y\nd {}\n") == {
        "port": 4222,
        "host": "127.0.0.1",
        "b": 1,
        "c": 2,
        "d": {},
    }
    assert values("") == values(" \n# only a comment") == {}
    assert values('{\n "a": 1,\n "b": {\n"c": 2\n}\n}\n') == {"a": 1, "b": {"c": 2}}
    assert values("{}") == values("{ }\n# x") == {}
    assert values("a: 1,,b: 2") == {"a": 1, ",b": 2}


END = "expected a comma, a comment or the end of the line"


@pytest.mark.parametrize(
    ("source", "place", "said"),
    [
        ("a: 1 b: 2", "1:5", f"{END}, not 'b'"),
        ("a: 1.5GB", "1:6", f"{END}, not 'G'"),
        ('a: "x"y', "1:6", f"{END}, not 'y'"),
        ("a { id: a max_x: 2 }", "1:10", f"{END}, or '}}', not 'm'"),
        ("a {} b {}", "1:5", f"{END}, not 'b'"),
        ("a { b: c]", "1:8", f"{END}, or '}}', not ']'"),
        ("a: [1,2]\n", "1:3", "'[' has no ']' (after a number it needs a blank in front)"),
        ("a: [b c]", "1:6", f"{END}, or ']', not 'c'"),
        ("a: [b", "1:5", f"{END}, or ']', not the end of the file"),
        ("a: [,]", "1:4", "expected a value, not ','"),
        ("b\n{ a: {", "2:6", "'{' has no '}'"),
        ("a { b", "1:4", "the key 'b' has no value"),
        ("a { b:, }", "1:4", "the key 'b' has no value"),
        ("a { 'b", "1:4", "the key has no closing '"),
        ("a {: 1}", "1:3", "expected a key, not ':'"),
        ("a {]", "1:3", "expected a key, not ']'"),
        ("= 5", "1:0", "expected a key, not '='"),
        ("a: \nb", "1:0", "the key 'a' has no value"),
        ("a: b\nc", "2:1", "the key 'c' has no value"),
        ("a: .5", "1:3", "a number begins with a digit"),
        ("a: 1.", "1:3", "expected digits after the point of a number"),
        ("a: -x", "1:3", "expected a digit after '-'"),
        *((f"a: {each}", "1:3", "expected a time such as 2006-01-02T15:04:05Z")
          for each in ("20-1", "2020-1", "2020-13-02T03:04:05Z")),
        *((f"a: {each}", "1:3", "the integer is out of range") for each in ("99999999999999999999", "10e")),
        (f"a: {'9' * 400}.0", "1:3", "the number is out of range"),
        ('a: "x', "1:3", 'the text has no closing "'),
        ("a: 'x", "1:3", "the text has no closing '"),
        ("a: (x", "1:3", "the block has no ) that is alone on its line"),
        *((f'a: "{each}"', "1:4", 'an escape is one of \\xXX, \\t, \\n, \\r, \\" and \\\\')
          for each in ("\\x4g", "\\q")),
        ("include\nx", "1:7", "expected the name of a file to include, not the end of the line"),
        ("include 'x", "1:8", "the name of the file to include has no closing '"),
    ],
)  # fmt: skip
def test_errors(source: str, place: str, said: str) -> None:
    assert problem(source) == f"F:{place}: {said}"


def test_depth_is_bounded() -> None:
    assert "nested deeper" in problem("a: " + "[" * (MAX_DEPTH + 5))
    assert "nested deeper" in problem("a {" * (MAX_DEPTH + 5))


def test_variables() -> None:
    assert values("x = 64MB\na { b: $x }") == {"x": 64 << 20, "a": {"b": 64 << 20}}
    assert values("x = 1\na { x = 2, b { c: $x } }\nd: $x")["d"] == 1
    assert values("x { y: 1 }\na: $x")["a"] == {"y": 1}
    assert values("a: [$x]", x="5 ") == {"a": [5]}
    assert values("a: $X", X="true") == {"a": True}
    assert values("a: $X", X="$Y", Y="24h") == {"a": "24h"}
    assert problem("\na: $nope") == "F:2:9: the variable 'nope' is defined neither above nor in the environment"
    assert problem("a: $x\nx = 5").startswith("F:1:5: the variable 'x' is defined neither above")
    assert problem("b { x = 5 }\na: $x").startswith("F:2:6: the variable 'x' is defined neither above")
    assert "refers to itself" in problem("a: $X", X="$X")
    assert problem("a: $X", X="a b").startswith(
        "F:1:5: the variable 'X' of the environment has no value: $X:1:8: expected a comma"
    )


def test_places() -> None:
    nodes = parse('a: 1\n"b" 2\n  c {\n d: [ x\n y ] }', "F", environ={})
    assert [nodes[key].place for key in "abc"] == ["F:1:0", "F:2:2", "F:3:3"]
    inner = nodes["c"].value
    assert isinstance(inner, dict) and inner["d"].place == "F:4:2"
    listed = inner["d"].value
    assert isinstance(listed, list) and [each.place for each in listed] == ["F:4:7", "F:5:2"]


def test_includes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "main.conf").write_text('include "deep/one.conf"\nstreaming { include limits.inc\n id: $ID }\nz: $BIG')
    (tmp_path / "deep" / "one.conf").write_text("include 'two.conf'\nport: 4222")
    (tmp_path / "deep" / "two.conf").write_text("BIG: 1MB")
    (tmp_path / "limits.inc").write_text("store_limits { max_msgs: 5 }")
    nodes = parse_file(str(tmp_path / "main.conf"), {"ID": "orders"})
    assert plain(nodes) == {
        "BIG": 1 << 20,
        "port": 4222,
        "streaming": {"store_limits": {"max_msgs": 5}, "id": "orders"},
        "z": 1 << 20,
    }
    assert nodes["port"].source == str(tmp_path / "deep" / "one.conf")


def test_broken_includes(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_text("include nope.conf")
    with pytest.raises(ConfigurationError) as caught:
        parse_file(str(main), {})
    assert caught.value.message == (
        f"{main}:1:8: include 'nope.conf': open {tmp_path}/nope.conf: no such file or directory"
    )
    main.write_text("include main.conf")
    with pytest.raises(ConfigurationError, match="without end"):
        parse_file(str(main), {})
    with pytest.raises(ConfigurationError, match="is a directory"):
        parse_file(str(tmp_path), {})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_bytes(b"a: \xff\xfe(\nb: \xff\n")
    nodes = parse_file(str(tmp_path / "a.conf"), {})
    assert str(nodes["a"].value).encode("utf-8", "surrogateescape") == b"\xff\xfe("


def test_names_of_types() -> None:
    nodes = parse("a: [x, 1 , true, 1.5, {b: 1}]\nd: 2020-01-02T03:04:05Z", environ={})
    listed = nodes["a"].value
    assert isinstance(listed, list)
    assert [kind(each.value) for each in listed] == ["string", "int64", "bool", "float64", "map"]
    assert (kind(listed), kind(nodes["d"].value)) == ("slice", "struct")
    assert text(nodes["a"]) == "[x 1 true 1.5 map[b:1]]"
    assert text(nodes["d"]) == "2020-01-02 03:04:05 +0000 UTC"
    assert text(1e30) == "1e+30"
    assert quote('a"\\\n\x01\N{SNOWMAN}\udcff') == '"a\\"\\\\\\n\\x01\N{SNOWMAN}\\xff"'


def test_a_tree_that_is_larger_than_its_text() -> None:
    lines = ["v0: [x, {y: z}]", *(f"v{n}: [$v{n - 1}, $v{n - 1}]" for n in range(1, 1500))]
    nodes = parse("\n".join(lines), environ={})
    assert len(text(nodes["v1499"])) < 1000
    assert len(text(nodes["v15"])) < 1000


# Round trip: what is written in the grammar is read again.

words = st.text(string.ascii_letters + "_", min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
plain_values = st.recursive(
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
keys = words.filter(lambda word: word.lower() != "include")


def written(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "off"
        case str():
            escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
            return '"' + "".join(escapes.get(character, character) for character in value) + '"'
        case list():
            return f"[{', '.join(written(each) + ' ' for each in value)}]"
        case dict():
            return "{" + "\n".join(f'"{key}": {written(each)}' for key, each in value.items()) + "}"
        case _:
            return str(value)


@given(st.dictionaries(keys, plain_values, max_size=5), st.sampled_from([": ", " = ", " "]))
def test_round_trip(wanted: dict[str, Any], separator: str) -> None:
    source = "\n".join(f"{key}{separator}{written(value)}" for key, value in wanted.items())
    assert values(source) == wanted


grammar_like = st.lists(
    st.sampled_from(
        ["a", "b", ":", "=", ",", ";", "{", "}", "[", "]", "(", ")", '"', "'", "5", "1.5", "k", "-", ".", "#"]
    )
    | st.sampled_from(
        ["//", "\\", "\\x41", "$", "$a", "true", "2006-01-02T15:04:05Z", "include x", "\n", "\r", " ", "é"]
    ),
    max_size=30,
).map("".join)


@given(
    grammar_like | st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
@example("a: (\n")
@example("a: 5\\")
def test_any_text(source: str) -> None:
    try:
        parse(source, "F", environ={"a": source})
    except ConfigurationError as error:
        assert error.message
