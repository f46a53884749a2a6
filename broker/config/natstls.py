"""TLS of the NATS server: the map `tls` of a file, and checks of the files that it names.

Facts: server-operations.md section 8.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from broker.config.catalogue import TLS_KEYS, Kind
from broker.config.durations import parse_duration
from broker.config.problems import Problems
from broker.config.systemerrors import reason
from broker.config.values import ConfigurationError, Node, quoted
from broker.nats.options import DEFAULT_TIMEOUT, TLSOptions

_KEYS: Final = {name: key.to for key in TLS_KEYS for name in key.names}
_SECOND: Final = 1e9
_TEXTS: Final = frozenset(("cert_file", "key_file", "ca_file"))
_BOOLS: Final = frozenset(("verify", "verify_and_map", "insecure"))
_TOO_WEAK: Final = (
    ": OpenSSL takes no such signature (SHA-1) or key any more; renew the certificate, or accept it with "
    "`tls { insecure: true }`"
)
_PIN: Final = re.compile(r"[0-9a-f]{64}")

#: Cipher suites that the original knows, TLS 1.2 and 1.3.
CIPHERS: Final = (
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
CURVES: Final = ("X25519", "CurveP256", "CurveP384", "CurveP521")


def read_tls(problems: Problems, node: Node) -> TLSOptions | None:
    """Reads the map `tls`."""
    if problems.map(node) is None:
        return None
    texts: dict[str, str] = {}
    switches: dict[str, bool] = {}
    timeout = 0.0
    ciphers: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    before = len(problems.errors)
    for name, entry in _entries(problems, node):
        to = _KEYS[name]
        value = entry.value
        if to in _TEXTS:
            if isinstance(value, str):
                texts[to] = value
            else:
                problems.error(entry, f"error parsing tls config, expected '{to}' to be filename")
        elif to in _BOOLS:
            if isinstance(value, bool):
                switches[to] = value
            else:
                problems.error(entry, f"error parsing tls config, expected '{to}' to be a boolean")
        elif to == "timeout":
            timeout = _timeout(problems, entry)
        elif to == "cipher_suites":
            ciphers = _choice(problems, entry, to, CIPHERS, "unrecognized cipher")
        elif to == "curve_preferences":
            curves = _choice(problems, entry, to, CURVES, "unrecognized curve preference")
        elif to == "pinned_certs":
            _pins(problems, entry)
        elif problems.value(entry, Kind.INT) is not None:
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
    """Loads the certificates.

    Args:
        options: With their names.
        weak: Leave it open whether the server's is too weak: that depends on options that are not known yet.

    Raises:
        ConfigurationError: A file is missing, or is not what it should be.
    """
    # Loaded only where there is TLS: most command lines are answered, or start, without.
    import ssl

    from broker.nats.tls import load_certificate, too_weak

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (options.cert, options.key):
        _check_readable(path, "error parsing X509 certificate/key pair: ")
    try:
        load_certificate(context, options)
    except (ssl.SSLError, ValueError, OSError) as problem:
        text = f"error parsing X509 certificate/key pair: tls: {_ssl_reason(problem)}"
        if not too_weak(problem):
            raise ConfigurationError(text) from None
        if not weak:
            raise ConfigurationError(text + _TOO_WEAK) from None
    if options.ca is not None:
        _check_readable(options.ca, "")
        try:
            context.load_verify_locations(options.ca)
        except (ssl.SSLError, ValueError, OSError):
            raise ConfigurationError("failed to parse root ca certificate") from None


def _check_readable(path: Path, prefix: str) -> None:
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"{prefix}open {path}: {reason(problem)}") from None


def _ssl_reason(problem: Exception) -> str:
    named = getattr(problem, "reason", None)  # of ssl.SSLError
    if isinstance(named, str) and named:
        return named.lower().replace("_", " ")
    return str(problem) or "no certificate found"


def _entries(problems: Problems, node: Node) -> list[tuple[str, Node]]:
    if not isinstance(node.value, dict):
        return []
    found = []
    for name, entry in node.value.items():
        if name.lower() == "verify_cert_and_check_known_urls":
            problems.error(entry, "verify_cert_and_check_known_urls not supported in this context")
        elif name.lower() in _KEYS:
            found.append((name.lower(), entry))
        elif not entry.used:
            problems.error(entry, f"error parsing tls config, unknown field [{quoted(name)}]")
    return found


def _timeout(problems: Problems, node: Node) -> float:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node.value, str):
        try:
            return parse_duration(node.value) / _SECOND
        except ConfigurationError as problem:
            problems.error(node, f"error parsing tls config, 'timeout' {problem.message}")
            return 0.0
    problems.error(node, "error parsing tls config, 'timeout' wrong type")
    return 0.0


def _choice(problems: Problems, node: Node, name: str, known: tuple[str, ...], unknown: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        problems.value(node, Kind.LIST)
        return ()
    if not node.value:
        problems.error(node, f"error parsing tls config, '{name}' cannot be empty")
    found = []
    for each in node.value:
        value = problems.value(each, Kind.STRING)
        if isinstance(value, str):
            if value not in known:
                problems.error(each, f"{unknown} {value}")
            found.append(value)
    return tuple(found)


def _pins(problems: Problems, node: Node) -> None:
    for value in problems.words(node):
        if not _PIN.fullmatch(value.lower()):
            problems.error(
                node,
                f"error parsing tls config, 'pinned_certs' key {value} does not look like hex-encoded sha256 of DER "
                "encoded SubjectPublicKeyInfo",
            )
    problems.unavailable.append(f"{node.place}: pinned_certs")
