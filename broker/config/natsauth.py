"""Users and permissions of the NATS server, from a configuration file (server-operations.md section 8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.config.catalogue import AUTHORIZATION, USER, Support, ValueType
from broker.config.values import (
    ConfigNode,
    ConfigurationError,
    Problems,
    go_type,
    kind,
    parse_go_duration,
    seconds,
    text,
)
from broker.nats.nats_options import Authorization, Permissions, ResponsePermission, SubjectPermission, User
from stantools.format.quoting import quote
from stantools.nats.subjects import valid_pattern

_CONNECTION_TYPES: Final = frozenset(("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS"))
_PUBLISH: Final = frozenset(("pub", "publish", "import"))
_SUBSCRIBE: Final = frozenset(("sub", "subscribe", "export"))
_RESPONSES: Final = frozenset(("publish_allow_responses", "allow_responses"))
_SECOND: Final = 1e9


def read_authorization(problems: Problems, node: ConfigNode) -> Authorization:
    """Reads the map `authorization`; the timeout is 0 if it is missing."""
    values: dict[str, Any] = {"timeout": 0.0}
    if problems.map(node) is None:
        return Authorization(**values)
    for name, entry in problems.known(node, AUTHORIZATION.keys):
        to = AUTHORIZATION.keys[name].setting
        if AUTHORIZATION.keys[name].state is Support.UNAVAILABLE:
            if entry.value is not False:
                problems.unavailable.append(f"{entry.place}: {name} of authorization")
        elif to in _READERS:
            values[to] = _READERS[to](problems, entry)
        elif (value := problems.value(entry, ValueType.STRING)) is not None:
            values[to] = value
    found = Authorization(**values)
    if found.token and (found.user or found.password):
        problems.error(node, "Cannot have a user/pass and token")
    if "users" not in values:
        return found
    if found.user:
        problems.error(node, "Can not have a single user/pass and a users array")
    if found.token:
        problems.error(node, "Can not have a token and a users array")
    seen: set[str] = set()
    for user in found.users:
        identity = user.nkey or user.name
        if identity in seen:
            problems.error(node, f"Duplicate user {quote(identity)} detected")
        seen.add(identity)
    default = found.default_permissions
    return replace(found, users=tuple(replace(user, permissions=user.permissions or default) for user in found.users))


def _seconds(problems: Problems, node: ConfigNode) -> float:
    """Reads a number of seconds; 0 for the default."""
    try:
        return seconds(node.value)
    except ConfigurationError:
        problems.warn(node, f"timeout is ignored: {text(node)} is not a number of seconds")
        return 0.0


def _users(problems: Problems, node: ConfigNode) -> tuple[User, ...]:
    if not isinstance(node.value, list):
        problems.error(node, f"Expected users field to be an array, got {text(node)}")
        return ()
    found = []
    for each in node.value:
        if not isinstance(each.value, dict):
            problems.error(each, f"Expected user entry to be a map/struct, got {text(each)}")
        else:
            found.append(_user(problems, each))
    return tuple(found)


def _user(problems: Problems, node: ConfigNode) -> User:
    # heavy import (asyncio), only needed with users
    from broker.nats.auth import user_key

    values: dict[str, Any] = {}
    place = node
    for name, entry in problems.known(node, USER.keys):
        place = entry
        to = USER.keys[name].setting
        if USER.keys[name].state is Support.UNAVAILABLE:
            if entry.value is not False:
                problems.unavailable.append(f"{entry.place}: {name} of a user")
        elif to == "permissions":
            values[to] = _permissions(problems, entry)
        elif to == "allowed_connection_types":
            _connection_types(problems, entry)
        elif (value := problems.value(entry, ValueType.STRING)) is not None:
            values[to] = value
    user = User(**values)
    if user.nkey and user_key(user.nkey) is None:
        problems.error(place, "Not a valid public nkey for a user")
    elif user.nkey and (user.name or user.password):
        problems.error(place, "Nkey users do not take usernames or passwords")
    elif not user.nkey and not user.name:
        problems.error(place, "User entry requires a user")
    return user


def _connection_types(problems: Problems, node: ConfigNode) -> None:
    types = [each.upper() for each in problems.words(node)]
    wrong = [each for each in types if each not in _CONNECTION_TYPES]
    if wrong:
        problems.error(node, f"invalid connection types [{' '.join(quote(each) for each in wrong)}]")
    elif types and "STANDARD" not in types:
        problems.unavailable.append(f"{node.place}: a user that may connect only by {', '.join(types)}")


def _permissions(problems: Problems, node: ConfigNode) -> Permissions:
    if not isinstance(node.value, dict):
        problems.error(node, f"Expected permissions to be a map/struct, got {text(node)}")
        return Permissions()
    found = Permissions()
    for name, entry in node.value.items():
        lower = name.lower()
        if lower in _PUBLISH:
            found = replace(found, publish=_subjects(problems, entry))
        elif lower in _SUBSCRIBE:
            found = replace(found, subscribe=_subjects(problems, entry))
        elif lower in _RESPONSES:
            found = replace(found, responses=_responses(problems, entry))
        elif not entry.used:
            problems.error(entry, f"Unknown field {quote(name)} parsing permissions")
    if found.responses is not None and found.publish.allow is None:
        # A user that may answer may publish nothing else unless allowed explicitly.
        found = replace(found, publish=replace(found.publish, allow=()))
    return found


def _subjects(problems: Problems, node: ConfigNode) -> SubjectPermission:
    if not isinstance(node.value, dict):
        return SubjectPermission(allow=_subject_list(problems, node))
    found = SubjectPermission()
    for name, entry in node.value.items():
        if name.lower() == "allow":
            found = replace(found, allow=_subject_list(problems, entry))
        elif name.lower() == "deny":
            found = replace(found, deny=_subject_list(problems, entry))
        elif not entry.used:
            problems.error(
                entry,
                f"Unknown field name {quote(name)} parsing subject permissions, only 'allow' or 'deny' are permitted",
            )
    return found


def _subject_list(problems: Problems, node: ConfigNode) -> tuple[bytes, ...]:
    if isinstance(node.value, str):
        named = [node]
    elif isinstance(node.value, list):
        named = node.value
    else:
        kind_name = go_type(node.value)
        problems.error(node, f"Expected subject permissions to be a subject, or array of subjects, got {kind_name}")
        return ()
    found = []
    for each in named:
        if not isinstance(each.value, str):
            problems.error(each, "Subject in permissions array cannot be cast to string")
        elif not is_permission_subject(each.value):
            problems.error(each, f"subject {quote(each.value)} is not a valid subject")
        else:
            found.append(each.value.encode("utf-8", "surrogateescape"))
    return tuple(found)


def _responses(problems: Problems, node: ConfigNode) -> ResponsePermission | None:
    if isinstance(node.value, bool):
        return ResponsePermission() if node.value else None
    found = ResponsePermission()
    if not isinstance(node.value, dict):
        problems.error(node, "error parsing response permissions, expected a boolean or a map")
        return found
    for name, entry in node.value.items():
        if name.lower() in ("max", "max_msgs", "max_messages", "max_responses"):
            number = problems.value(entry, ValueType.INT)
            if isinstance(number, int) and number != 0:
                found = replace(found, max_msgs=number)
        elif name.lower() in ("expires", "expiration", "ttl"):
            if kind(entry.value) != "string":
                problems.error(entry, "error parsing expires, not a duration string")
                continue
            try:
                expires = parse_go_duration(str(entry.value)) / _SECOND
            except ConfigurationError as problem:
                problems.error(entry, f"error parsing expires: {problem.message}")
                continue
            found = replace(found, expires=expires or found.expires)
        elif not entry.used:
            problems.error(entry, f"unknown field {quote(name)}")
    return found


def is_permission_subject(text: str) -> bool:
    """Returns whether a text is a subject with wildcards, optionally followed by a blank and a queue."""
    parts = text.split()
    fits = all(valid_pattern(part.encode("utf-8", "surrogateescape")) for part in parts)
    return 1 <= len(parts) <= 2 and fits and text == text.strip()


_READERS: Final[Mapping[str, Callable[[Problems, ConfigNode], Any]]] = {
    "users": _users,
    "default_permissions": _permissions,
    "timeout": _seconds,
}
