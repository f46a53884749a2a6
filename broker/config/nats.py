"""The NATS part of a configuration file (server-operations.md sections 5 and 8).

All errors of a file are collected, each with its place. Unknown keys are errors inside of blocks only. Features that
the embedded server lacks are in `NatsFile.unavailable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.config.catalogue import (
    JETSTREAM,
    NATS,
    NATS_LOGS,
    NATS_PARTS,
    NATS_TLS,
    ROUTES,
    OptionDeclaration,
    Support,
    ValueType,
)
from broker.config.natsauth import read_authorization
from broker.config.settings import NatsFile
from broker.config.values import (
    ConfigNode,
    ConfigurationError,
    Problems,
    go_type,
    parse_go_duration,
    reason,
    seconds,
    text,
)
from broker.nats.nats_options import DEFAULT_TIMEOUT, TLSOptions
from stantools.format.quoting import quote
from stantools.notation import format_go_duration, parse_size

_SECOND: Final = 1_000_000_000
_TOP: Final = NATS.keys | NATS_LOGS.keys
_PARTS: Final = NATS_PARTS.keys
_ADDRESSES: Final = {
    "nats.listen": ("nats.host", "nats.port"),
    "nats.http": ("nats.http_host", "nats.http_port"),
    "nats.https": ("nats.http_host", "nats.https_port"),
}
#: durations that may be seconds, with a warning
_SECONDS_ALLOWED: Final = frozenset(("nats.ping_interval", "nats.write_deadline"))
_MAX_INT32: Final = (1 << 31) - 1
_INT32: Final = frozenset(("nats.max_payload", "nats.max_control_line"))
_SWITCHES: Final = {"enabled": True, "enable": True, "true": True, "disabled": False, "disable": False, "false": False}
_SHORTEST_LAME_DUCK: Final = 30 * _SECOND
_PORT: Final = re.compile(r"[+-]?[0-9]{1,18}")
_TLS: Final = NATS_TLS.keys
_TEXTS: Final = frozenset(("cert_file", "key_file", "ca_file"))
_BOOLS: Final = frozenset(("verify", "verify_and_map", "insecure"))
_TOO_WEAK: Final = (
    ": OpenSSL no longer accepts such a signature (SHA-1) or key; renew the certificate, or accept it with "
    "`tls { insecure: true }`"
)
_PIN: Final = re.compile(r"[0-9a-f]{64}")


def read_nats(top: Mapping[str, ConfigNode]) -> NatsFile:
    """Reads the NATS keys of a file; the error has one line per problem, warnings first."""
    found, problems = NatsFile(top=top), Problems()
    for name, node in top.items():
        lower = name.lower()
        if (key := _TOP.get(lower)) is not None:
            _plain(found, problems, lower, node, key)
        elif (key := _PARTS.get(lower)) is not None:
            _block(found, problems, lower, node, key)
    if problems.errors:
        raise ConfigurationError("\n".join((*problems.warnings, *problems.errors)))
    found.warnings += problems.warnings
    found.unavailable += problems.unavailable
    return found


def parse_address(value: str | bool | int | float | object) -> tuple[str | None, int]:
    """Splits `host:port`; the host is None if there is only a port."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    if not isinstance(value, str):
        raise ConfigurationError(f"expected port or host:port, got {go_type(value)}")
    host, separator, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        separator = ""
    if not separator:
        raise ConfigurationError(f"could not parse address string {quote(value)}")
    if not _PORT.fullmatch(port):
        raise ConfigurationError(f"could not parse port {quote(port)}")
    return host, int(port)


def _plain(found: NatsFile, problems: Problems, name: str, node: ConfigNode, key: OptionDeclaration) -> None:
    if key.kind is ValueType.ADDRESS:
        host_setting, port_setting = _ADDRESSES[key.setting]
        try:
            host, found.settings[port_setting] = parse_address(node.value)
        except ConfigurationError as problem:
            problems.error(node, problem.message)
            return
        if host is not None:
            found.settings[host_setting] = host
    elif key.kind is ValueType.DURATION:
        duration = _duration(problems, name, node, seconds_allowed=key.setting in _SECONDS_ALLOWED)
        if duration is not None:
            found.settings[key.setting] = duration
    elif key.kind is ValueType.LIST:
        problems.words(node)
    elif (value := problems.value(node, key.kind)) is not None:
        if key.setting in _INT32 and isinstance(value, int) and value > _MAX_INT32:
            problems.error(node, f"{name} value is too big")
        found.settings[key.setting] = value
    if key.state in (Support.WARNED, Support.NOT_NEEDED):
        problems.warn_ineffective(node, name, key.state)
    elif key.state is Support.UNAVAILABLE and node.value is True:
        problems.unavailable.append(f"{node.place}: {name}")


def _duration(problems: Problems, name: str, node: ConfigNode, *, seconds_allowed: bool) -> int | None:
    if isinstance(node.value, str):
        try:
            duration = parse_go_duration(node.value)
        except ConfigurationError as problem:
            problems.error(node, f"error parsing {name}: {problem.message}")
            return None
    elif not seconds_allowed:
        problems.value(node, ValueType.STRING)
        return None
    else:
        problems.warn(node, f"invalid use of field {quote(name)}: {name} should be converted to a duration")
        value = problems.value(node, ValueType.INT)
        if not isinstance(value, int):
            return None
        duration = value * _SECOND
    if name == "lame_duck_duration" and duration < _SHORTEST_LAME_DUCK:
        problems.error(node, f"invalid lame_duck_duration of {format_go_duration(duration)}, minimum is 30 seconds")
    if name == "lame_duck_grace_period" and duration < 0:
        problems.error(node, "invalid lame_duck_grace_period, needs to be positive")
    return duration


def _block(found: NatsFile, problems: Problems, name: str, node: ConfigNode, key: OptionDeclaration) -> None:
    if key.setting == "authorization":
        found.authorization = read_authorization(problems, node)
    elif key.setting == "tls":
        found.tls = read_tls(problems, node)
    elif key.setting == "cluster":
        _cluster(found, problems, node)
    elif key.setting == "jetstream":
        _jetstream(found, problems, node)
    elif key.state in (Support.WARNED, Support.NOT_NEEDED):
        problems.warn_ineffective(node, name, key.state)
    elif _requests_feature(node):
        problems.unavailable.append(f"{node.place}: {name}")


def _cluster(found: NatsFile, problems: Problems, node: ConfigNode) -> None:
    if not isinstance(node.value, dict):
        problems.error(node, f"Expected map to define cluster, got {go_type(node.value)}")
        return
    settings = found.settings
    for name, entry in problems.known(node, ROUTES.keys):
        key = ROUTES.keys[name]
        if key.state is Support.UNAVAILABLE:
            problems.unavailable.append(f"{entry.place}: {name} of cluster")
        elif key.setting == "routes.listen":
            try:
                host, settings["routes.port"] = parse_address(entry.value)
            except ConfigurationError as problem:
                problems.error(entry, problem.message)
                continue
            if host is not None:
                settings["routes.host"] = host
        elif key.setting == "routes":
            settings["routes"] = ",".join(problems.words(entry))
        elif key.setting == "routes.authorization":
            who = read_authorization(problems, entry)
            if who.users or who.token:
                problems.error(entry, "Cluster authorization does not allow multiple users or tokens")
            settings |= {"routes.user": who.user, "routes.password": who.password}
            if who.timeout:
                settings["routes.timeout"] = round(who.timeout * _SECOND)
        elif key.setting == "routes.tls":
            found.cluster_tls = read_tls(problems, entry)
        elif key.state is Support.NOT_NEEDED:
            problems.warn_ineffective(entry, f"{name} of cluster", key.state)
        elif (value := problems.value(entry, key.kind)) is not None:
            settings[key.setting] = value


def _jetstream(found: NatsFile, problems: Problems, node: ConfigNode) -> None:
    value = node.value
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in _SWITCHES):
        found.settings["jetstream"] = _SWITCHES[str(value).lower()]
        return
    if not isinstance(value, dict):
        problems.error(node, f"Expected map, bool or string to define JetStream, got {go_type(value)}")
        return
    found.settings["jetstream"] = True
    for name, entry in problems.known(node, JETSTREAM.keys):
        key = JETSTREAM.keys[name]
        if key.state is Support.UNAVAILABLE:
            problems.unavailable.append(f"{entry.place}: {name} of jetstream")
        elif key.state is not Support.WORKS:
            problems.warn_ineffective(entry, f"{name} of jetstream", key.state)
        elif key.kind is ValueType.SIZE:
            if (size := _size(problems, name, entry)) is not None:
                found.settings[key.setting] = size
        elif (said := problems.value(entry, key.kind)) is not None:
            found.settings[key.setting] = said


def _size(problems: Problems, name: str, node: ConfigNode) -> int | None:
    """Reads a size: a number, or a text such as `10G` or `10GB`."""
    value = node.value
    if isinstance(value, str):
        if not value:
            return None
        try:
            return parse_size(value)
        except ValueError:
            problems.error(node, f"{name} should be a size such as 10G, got {quote(value)}")
            return None
    found = problems.value(node, ValueType.INT)
    return found if isinstance(found, int) else None


def _requests_feature(node: ConfigNode) -> bool:
    """Returns whether a block would enable a feature that this server lacks."""
    if isinstance(node.value, dict | list | str):
        return bool(node.value) and str(text(node)).lower() not in ("disabled", "disable", "false")
    return node.value is not False


def read_tls(problems: Problems, node: ConfigNode) -> TLSOptions | None:
    if problems.map(node) is None:
        return None
    # heavy import: most command lines are answered, or start, without TLS
    from broker.nats.tls import CIPHERS, CURVES

    texts: dict[str, str] = {}
    switches: dict[str, bool] = {}
    timeout = 0.0
    ciphers: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    before = len(problems.errors)
    for name, entry in _entries(problems, node):
        value = entry.value
        if name in _TEXTS:
            if isinstance(value, str):
                texts[name] = value
            else:
                problems.error(entry, f"error parsing tls config, expected '{name}' to be filename")
        elif name in _BOOLS:
            if isinstance(value, bool):
                switches[name] = value
            else:
                problems.error(entry, f"error parsing tls config, expected '{name}' to be a boolean")
        elif name == "timeout":
            try:
                timeout = seconds(value)
            except ConfigurationError as problem:
                problems.error(entry, f"error parsing tls config, 'timeout' {problem.message}")
        elif name == "cipher_suites":
            ciphers = _choice(problems, entry, name, CIPHERS, "unrecognized cipher")
        elif name == "curve_preferences":
            curves = _choice(problems, entry, name, CURVES, "unrecognized curve preference")
        elif name == "pinned_certs":
            _check_pins(problems, entry)
        elif (key := _TLS[name]).state is Support.UNAVAILABLE:
            if entry.value is not False and not (name == "min_version" and text(entry) == "1.2"):
                problems.unavailable.append(f"{entry.place}: {name} of tls")
        elif key.kind is ValueType.BOOL:
            problems.warn_ineffective(entry, f"{name} of tls", key.state)
        elif problems.value(entry, ValueType.INT) is not None:
            problems.warn(entry, f"{name} has no effect in this server")
    options = TLSOptions(
        cert=Path(texts.get("cert_file", "")),
        key=Path(texts.get("key_file", "")),
        ca=Path(texts["ca_file"]) if texts.get("ca_file") else None,
        verify=switches.get("verify", False) or switches.get("verify_and_map", False),
        verify_and_map=switches.get("verify_and_map", False),
        timeout=timeout or DEFAULT_TIMEOUT,
        ciphers=ciphers,
        curves=curves,
        insecure=switches.get("insecure", False),
    )
    if len(problems.errors) == before:
        if bool(texts.get("cert_file")) != bool(texts.get("key_file")):
            missing = "key_file" if texts.get("cert_file") else "cert_file"
            problems.error(node, f"missing '{missing}' in TLS configuration")
        elif not texts.get("cert_file"):
            return None
        else:
            try:
                check_files(options)
            except ConfigurationError as problem:
                problems.error(node, problem.message)
    return options


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


def _entries(problems: Problems, node: ConfigNode) -> list[tuple[str, ConfigNode]]:
    if not isinstance(node.value, dict):
        return []
    found = []
    for name, entry in node.value.items():
        if name.lower() == "verify_cert_and_check_known_urls":
            problems.error(entry, "verify_cert_and_check_known_urls not supported in this context")
        elif name.lower() in _TLS:
            found.append((name.lower(), entry))
        elif not entry.used:
            problems.error(entry, f"error parsing tls config, unknown field [{quote(name)}]")
    return found


def _choice(problems: Problems, node: ConfigNode, name: str, known: Mapping[str, str], unknown: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        problems.value(node, ValueType.LIST)
        return ()
    if not node.value:
        problems.error(node, f"error parsing tls config, '{name}' cannot be empty")
    found = []
    for each in node.value:
        value = problems.value(each, ValueType.STRING)
        if isinstance(value, str):
            if value not in known:
                problems.error(each, f"{unknown} {value}")
            found.append(value)
    return tuple(found)


def _check_pins(problems: Problems, node: ConfigNode) -> None:
    for value in problems.words(node):
        if not _PIN.fullmatch(value.lower()):
            problems.error(
                node,
                f"error parsing tls config, 'pinned_certs' key {value} does not look like hex-encoded sha256 of DER "
                "encoded SubjectPublicKeyInfo",
            )
    problems.unavailable.append(f"{node.place}: pinned_certs")
