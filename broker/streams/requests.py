"""Bodies of requests: JSON with members of known types. Every body ends as values or as a `RequestError`.

Facts: jetstream-server.md section 2.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Final, NoReturn

from broker.streams.api_errors import RequestError, invalid_json, not_empty
from stantools.notation import format_moment, parse_moment
from stantools.streamfiles.stream_config import TIME, ConfigMember

_INT64: Final = range(-(1 << 63), 1 << 63)
_UINT64: Final = range(1 << 64)
_UNFIT: Final = frozenset(".*>\\/ \t\r\n\f\0")
_EMPTY: Final = re.compile(rb"\s*(\{\s*\}|\[\s*\])?\s*")
_NEVER: Final = "0001-01-01T00:00:00Z"
#: Limits of a body: bytes, values, and nesting. Names of 10,000 subjects fit.
_MOST_BYTES: Final = 1 << 20
_MOST_VALUES: Final = 100_000
_MOST_DEPTH: Final = 64
#: Text outside of brackets in JSON.
_NO_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[^"\[\]{}]+', re.DOTALL)
#: members of an answer encoded per step
_PIECE: Final = 2048


def _constant(text: str) -> NoReturn:
    raise ValueError(f"invalid character {text[0]!r} looking for beginning of value")


def parse(body: bytes) -> dict[str, Any]:
    """Returns the members of a body, none for an empty one. Raises `RequestError` if it is not a JSON object."""
    if not body:
        return {}
    _check_bounds(body)
    try:
        value = json.loads(body.decode(), parse_constant=_constant)
        if b"\\u" in body:
            # Half of a surrogate pair is not a character, and could not be sent back.
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        at_end = problem.pos >= len(body.decode().rstrip())
        raise invalid_json("unexpected EOF" if at_end else f"{problem.msg} at offset {problem.pos + 1}") from None
    except RecursionError:
        raise invalid_json("exceeded max depth") from None
    except ValueError:
        raise invalid_json("invalid character in string literal") from None
    if not isinstance(value, dict):
        raise invalid_json(f"json: cannot unmarshal {_type_name(value)} into Go value")
    return value


def _check_bounds(body: bytes) -> None:
    """Refuses a body that would take long to parse."""
    if len(body) > _MOST_BYTES:
        raise invalid_json(f"the request has {len(body)} bytes, at most {_MOST_BYTES} are allowed")
    opened = body.count(b"[") + body.count(b"{")
    if opened + body.count(b",") > _MOST_VALUES:
        raise invalid_json(f"the request has more than {_MOST_VALUES} values")
    if opened > _MOST_DEPTH:
        depth = 0
        for bracket in _NO_BRACKET.sub(b"", body):
            depth += 1 if bracket in b"[{" else -1
            if depth > _MOST_DEPTH:
                raise invalid_json("exceeded max depth")


def valid_name(name: str) -> bool:
    """Returns whether the characters of a stream's or consumer's name are valid; its length is not checked."""
    return bool(name) and not _UNFIT.intersection(name)


def expect_empty(body: bytes) -> None:
    """Raises `RequestError` if a request without options has a body."""
    if not _EMPTY.fullmatch(body):
        raise not_empty()


def members(values: Mapping[str, Any], kinds: Mapping[str, str], what: str, *, strict: bool = False) -> dict[str, Any]:
    """Returns the known members that are not null, with times as nanoseconds since 1970.

    `what` names the owner of the members in error texts. Raises `RequestError` for a wrong type, and with `strict`
    for an unknown member, unless its value is empty.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is None:
            if strict and value:
                raise invalid_json(f'json: unknown field "{name[:100]}"')
        elif value is not None:
            if not _is_kind(value, kind):
                raise invalid_json(
                    f"json: cannot unmarshal {_type_name(value)} into Go struct field {what}.{name} of type {kind}"
                )
            found[name] = _nanoseconds(value) if kind == TIME else value
    return found


def read_config(values: Mapping[str, Any], declared: Mapping[str, ConfigMember], what: str) -> dict[str, Any]:
    """Returns the members of a configuration as `members` does; a wrong word is an error as well."""
    found = members(values, {name: each.json_type for name, each in declared.items()}, what, strict=True)
    for name, value in found.items():
        if (words := declared[name].choices) and value not in words:
            raise RequestError(400, 10025, f'invalid JSON: can not unmarshal "\\"{value[:40]}\\""')
    return found


def _is_kind(value: object, kind: str) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int64" | "int":
            return type(value) is int and value in _INT64
        case "uint64":
            return type(value) is int and value in _UINT64
        case "[]string":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        case "[]time.Duration":
            return isinstance(value, list) and all(type(each) is int and each in _INT64 for each in value)
        case "struct":
            return isinstance(value, dict)
        case "[]struct":
            return isinstance(value, list) and all(isinstance(each, dict) for each in value)
        case "map[string]string":
            return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    return isinstance(value, str)


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number" if isinstance(value, int) and abs(value) < 1 << 64 else f"number {value!r:.40}"
        case list():
            return "array"
    return "object" if isinstance(value, dict) else "null"


def _nanoseconds(text: str) -> int:
    try:
        return parse_moment(text)
    except (ValueError, OverflowError):
        raise invalid_json(f'parsing time "{text[:60]}" as "2006-01-02T15:04:05Z07:00": cannot parse') from None


def time_text(nanoseconds: int) -> str:
    """Returns a time as the API writes it; 0 means never."""
    return format_moment(nanoseconds) if nanoseconds else _NEVER


def dumps(value: object) -> bytes:
    """Returns JSON as the API writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def dumps_long(answer: dict[str, Any]) -> Generator[None, None, bytes]:
    """Returns JSON as `dumps` does, in steps, for an answer with possibly many subjects."""
    state = answer.get("state")
    if not isinstance(state, dict) or len(subjects := state.get("subjects", ())) <= _PIECE:
        return dumps(answer)
    place = secrets.token_hex(16)
    before, after = dumps({**answer, "state": {**state, "subjects": place}}).split(b'"%b"' % place.encode())
    pieces = []
    items = iter(subjects.items())
    while some := dict(islice(items, _PIECE)):
        pieces.append(dumps(some)[1:-1])
        yield
    return b"%b{%b}%b" % (before, b",".join(pieces), after)


def failed(kind: str, error: RequestError) -> dict[str, Any]:
    """Returns an answer that reports an error."""
    return {"type": response_type(kind), "error": error.as_json()}


def response_type(kind: str) -> str:
    """Returns the `type` member of an answer."""
    return f"io.nats.jetstream.api.v1.{kind}_response"
