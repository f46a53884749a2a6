"""The NATS part of a configuration file: users and permissions, TLS, routes, JetStream.

Facts: server-operations.md sections 5 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from broker.config.file_reader import FileReader, MapReader
from broker.config.settings import FileContent
from broker.config.values import ConfigNode, ConfigurationError, kind, reason, seconds, text
from broker.nats.nats_options import Authorization, Permissions, ResponsePermission, SubjectPermission, TLSOptions, User
from stantools.format.quoting import quote
from stantools.nats.subjects import valid_pattern

_CONNECTION_TYPES: Final = frozenset(("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS"))
_SWITCHES: Final = {"enabled": True, "enable": True, "true": True, "disabled": False, "disable": False, "false": False}
_TOO_WEAK: Final = (
    ": OpenSSL no longer accepts such a signature (SHA-1) or key; renew the certificate, or accept it with "
    "`tls { insecure: true }`"
)


def read_nats(top: Mapping[str, ConfigNode]) -> FileContent:
    """Reads the NATS keys of a file; unknown keys at its top level are no error."""
    reader = FileReader(_MAPS, nats=True)
    return reader.content(reader.entries(top, "", strict=False), top)


def _jetstream(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    value = node.value
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in _SWITCHES):
        return {"jetstream": _SWITCHES[str(value).lower()]}
    if not isinstance(value, dict):
        reader.error(node, f"Expected map, bool or string to define JetStream, got {kind(value)}")
        return {}
    # the key `enabled` inside is a switch as well
    inner = {name: entry for name, entry in value.items() if name.lower() not in ("enabled", "enable")}
    found = {"jetstream": True, **reader.entries(inner, "jetstream", " of jetstream")}
    for name, entry in value.items():
        if name not in inner:
            if isinstance(entry.value, bool):
                found["jetstream"] = entry.value
            else:
                reader.error(entry, f"parameter {quote(name)} value is expected to be bool, got {kind(entry.value)}")
    return found


def _routes(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    return reader.entries(reader.map(node), "cluster", " of cluster")


def _routes_authorization(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    who = _read_authorization(reader, node)
    if who.users or who.token:
        reader.error(node, "Cluster authorization does not allow multiple users or tokens")
    return {"routes.user": who.user, "routes.password": who.password, "routes.timeout": who.timeout}


# Users and permissions


def _read_authorization(reader: FileReader, node: ConfigNode) -> Authorization:
    """Reads the map `authorization`; the timeout is 0 if it is missing."""
    values = reader.record(node, "authorization", " of authorization")
    found = Authorization(**{"timeout": 0.0, **values})
    if found.token and (found.user or found.password):
        reader.error(node, "Cannot have a user/pass and token")
    if "users" in values:
        if found.user:
            reader.error(node, "Can not have a single user/pass and a users array")
        if found.token:
            reader.error(node, "Can not have a token and a users array")
        seen: set[str] = set()
        for identity in (user.nkey or user.name for user in found.users):
            if identity in seen:
                reader.error(node, f"Duplicate user {quote(identity)} detected")
            seen.add(identity)
    default = found.default_permissions
    return replace(found, users=tuple(replace(user, permissions=user.permissions or default) for user in found.users))


def _timeout(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    try:
        return {"timeout": seconds(node.value)}
    except ConfigurationError:
        reader.warn(node, f"timeout is ignored: {text(node)} is not a number of seconds")
        return {}


def _users(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    if not isinstance(node.value, list):
        reader.error(node, f"Expected users field to be an array, got {text(node)}")
        return {}
    return {"users": tuple(_user(reader, each) for each in node.value)}


def _user(reader: FileReader, node: ConfigNode) -> User:
    # heavy import (asyncio), only needed with users
    from broker.nats.auth import user_key

    values = reader.record(node, "authorization.users", " of a user")
    types = [each.upper() for each in values.pop("connection_types", ())]
    if wrong := [each for each in types if each not in _CONNECTION_TYPES]:
        reader.error(node, f"invalid connection types [{' '.join(quote(each) for each in wrong)}]")
    elif types and "STANDARD" not in types:
        reader.unavailable.append(f"{node.place}: a user that may connect only by {', '.join(types)}")
    user = User(**values)
    if user.nkey and user_key(user.nkey) is None:
        reader.error(node, "Not a valid public nkey for a user")
    elif user.nkey and (user.name or user.password):
        reader.error(node, "Nkey users do not take usernames or passwords")
    elif not user.nkey and not user.name and isinstance(node.value, dict):
        reader.error(node, "User entry requires a user")
    return user


def _permissions(reader: FileReader, node: ConfigNode) -> Permissions:
    found = Permissions(**reader.record(node, "permissions"))
    if found.responses is not None and found.publish.allow is None:
        # A user that may answer may publish nothing else unless allowed explicitly.
        return replace(found, publish=replace(found.publish, allow=()))
    return found


def _subject_permission(reader: FileReader, node: ConfigNode) -> SubjectPermission:
    if isinstance(node.value, dict):
        return SubjectPermission(**reader.record(node, "permissions.publish"))
    return SubjectPermission(allow=_subjects(reader, node))


def _subjects(reader: FileReader, node: ConfigNode) -> tuple[bytes, ...]:
    if not isinstance(node.value, str | list):
        reader.error(node, f"Expected a subject, or an array of subjects, got {kind(node.value)}")
        return ()
    found = []
    for each in [node] if isinstance(node.value, str) else node.value:
        if not isinstance(each.value, str) or not is_permission_subject(each.value):
            reader.error(each, f"subject {quote(text(each))} is not a valid subject")
        else:
            found.append(each.value.encode("utf-8", "surrogateescape"))
    return tuple(found)


def _responses(reader: FileReader, node: ConfigNode) -> ResponsePermission | None:
    if isinstance(node.value, bool):
        return ResponsePermission() if node.value else None
    values = reader.record(node, "permissions.allow_responses")
    return ResponsePermission(**{name: value for name, value in values.items() if value})  # 0 is the default


def is_permission_subject(text: str) -> bool:
    """Returns whether a text is a subject with wildcards, optionally followed by a blank and a queue."""
    parts = text.split()
    fits = all(valid_pattern(part.encode("utf-8", "surrogateescape")) for part in parts)
    return 1 <= len(parts) <= 2 and fits and text == text.strip()


# TLS


def _read_tls(reader: FileReader, node: ConfigNode) -> TLSOptions | None:
    before = len(reader.errors)
    values = reader.record(node, "tls", " of tls")
    fields = {name.removeprefix("tls."): value for name, value in values.items()}
    options = TLSOptions(**{"cert": Path(), "key": Path(), **fields})
    options = replace(options, verify=options.verify or options.verify_and_map)
    if len(reader.errors) > before:
        return None
    missing = [name for name, path in (("cert_file", options.cert), ("key_file", options.key)) if path == Path()]
    if len(missing) == 2:
        return None
    if missing:
        reader.error(node, f"missing '{missing[0]}' in TLS configuration")
        return None
    try:
        check_files(options)
    except ConfigurationError as problem:
        reader.error(node, problem.message)
    return options


def _ciphers(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    # heavy import: most command lines are answered, or start, without TLS
    from broker.nats.tls import CIPHERS

    return {"tls.ciphers": _choice(reader, node, CIPHERS, "unrecognized cipher")}


def _curves(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    from broker.nats.tls import CURVES

    return {"tls.curves": _choice(reader, node, CURVES, "unrecognized curve preference")}


def _choice(reader: FileReader, node: ConfigNode, known: Mapping[str, str], unknown: str) -> tuple[str, ...]:
    if not isinstance(node.value, list) or not node.value:
        reader.error(node, f"expected a list with one name at least, got {text(node)}")
        return ()
    for each in node.value:
        if not isinstance(each.value, str) or each.value not in known:
            reader.error(each, f"{unknown} {text(each)}")
    return tuple(str(each.value) for each in node.value)


def check_files(options: TLSOptions, *, weak: bool = True) -> None:
    """Loads the certificates; `weak` accepts a weak one of the server, as later options may permit it."""
    import ssl

    from broker.nats.tls import load_certificate, too_weak
    from stantools.nats.pem import authority_problem, certificate_problem

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (options.cert, options.key):
        _check_readable(path, "error parsing X509 certificate/key pair: ")
    try:
        load_certificate(context, options)
    except (ssl.SSLError, ValueError, OSError) as problem:
        reason = certificate_problem(options.cert, options.key)
        if not reason:
            code = getattr(problem, "reason", None)  # attribute of ssl.SSLError
            reason = code.lower().replace("_", " ") if code else str(problem) or "no certificate found"
        text = f"error parsing X509 certificate/key pair: tls: {reason}"
        if not too_weak(problem):
            raise ConfigurationError(text) from None
        if not weak:
            raise ConfigurationError(text + _TOO_WEAK) from None
    if options.ca is not None:
        _check_readable(options.ca, "")
        try:
            context.load_verify_locations(options.ca)
        except (ssl.SSLError, ValueError, OSError):
            raise ConfigurationError(f"failed to parse root ca certificate: {authority_problem(options.ca)}") from None


def _check_readable(path: Path, prefix: str) -> None:
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"{prefix}open {path}: {reason(problem)}") from None


#: by setting; those of objects are fields
_MAPS: Final[Mapping[str, MapReader]] = {
    "authorization": lambda reader, node: {"authorization": _read_authorization(reader, node)},
    "tls": lambda reader, node: {"tls": _read_tls(reader, node)},
    "routes": _routes,
    "routes.authorization": _routes_authorization,
    "routes.tls": lambda reader, node: {"routes.tls": _read_tls(reader, node)},
    "jetstream": _jetstream,
    "timeout": _timeout,
    "users": _users,
    "default_permissions": lambda reader, node: {"default_permissions": _permissions(reader, node)},
    "permissions": lambda reader, node: {"permissions": _permissions(reader, node)},
    "publish": lambda reader, node: {"publish": _subject_permission(reader, node)},
    "subscribe": lambda reader, node: {"subscribe": _subject_permission(reader, node)},
    "responses": lambda reader, node: {"responses": _responses(reader, node)},
    "allow": lambda reader, node: {"allow": _subjects(reader, node)},
    "deny": lambda reader, node: {"deny": _subjects(reader, node)},
    "tls.ciphers": _ciphers,
    "tls.curves": _curves,
}
