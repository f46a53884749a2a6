"""The JSON behind CONNECT and INFO: read with bounds, its types checked, refused with the texts of the original."""

from __future__ import annotations

import json
from typing import Any, Final, Never

#: Options of CONNECT that nats-server knows, and their types.
_OPTIONS: Final[dict[str, type]] = {
    "echo": bool,
    "verbose": bool,
    "pedantic": bool,
    "tls_required": bool,
    "nkey": str,
    "jwt": str,
    "sig": str,
    "auth_token": str,
    "user": str,
    "pass": str,
    "name": str,
    "lang": str,
    "version": str,
    "protocol": int,
    "account": str,
    "new_account": bool,
    "headers": bool,
    "no_responders": bool,
}
#: Numbers have 64 bits; so many characters of one are shown.
_MOST: Final = (1 << 63) - 1
_SNIP: Final = 32
_TYPE_NAMES: Final[dict[type, str]] = {bool: "bool", str: "string", int: "int"}


class RefusedError(ValueError):
    """JSON that is not accepted; the text is what the original logs."""


def parse_options(text: bytes) -> dict[str, Any]:
    """Returns the options of a CONNECT: names in lower case, only those that are known and not null.

    Raises:
        RefusedError: It is no object, or an option has another type.
    """
    options: dict[str, Any] = {}
    for written, value in parse_object(text).items():
        name = written.lower()
        wanted = _OPTIONS.get(name)
        if wanted is None or value is None:
            continue
        if type(value) is not wanted or (isinstance(value, int) and abs(value) > _MOST):
            shown = f"number {str(value)[:_SNIP]}" if wanted is int and _kind(value) == "number" else _kind(value)
            field = f"ClientOpts.{name} of type {_TYPE_NAMES[wanted]}"
            raise RefusedError(f"json: cannot unmarshal {shown} into Go struct field {field}")
        options[name] = value
    return options


def parse_object(text: bytes) -> dict[str, Any]:
    """Returns a JSON object; an empty one for null. Its size is bounded by the caller.

    Raises:
        RefusedError: It is something else.
    """
    try:
        # The original replaces what is not UTF-8, too.
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=_constant)
    except RefusedError:
        raise
    except json.JSONDecodeError as problem:
        raise RefusedError(_said(problem)) from None
    except (ValueError, RecursionError):
        raise RefusedError("invalid JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedError(f"json: cannot unmarshal {_kind(value)} into Go value of type server.ClientOpts")
    return value


def _constant(name: str) -> Never:
    raise RefusedError(f"invalid character {name[0]!r} looking for beginning of value")


def _said(problem: json.JSONDecodeError) -> str:
    if problem.pos >= len(problem.doc.rstrip()):
        return "unexpected end of JSON input"
    character = problem.doc[problem.pos]
    where = {
        "Expecting value": "looking for beginning of value",
        "Extra data": "after top-level value",
        "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
        "Expecting ':' delimiter": "after object key",
        "Expecting ',' delimiter": "after value",
    }.get(problem.msg)
    return f"invalid character {character!r} {where}" if where else f"invalid JSON: {problem.msg}"


def _kind(value: object) -> str:
    """Returns the JSON name of a value's type."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"
