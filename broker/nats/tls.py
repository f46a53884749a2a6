"""TLS contexts, and the names in client certificates."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from broker.nats.nats_options import TLSOptions

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
#: The suites of TLS 1.3, always enabled.
_TLS13: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
#: Cipher suites: the original's IANA name -> OpenSSL's name.
CIPHERS: Final = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    **{name: name for name in _TLS13},
}
CURVES: Final = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}


class TLSError(ValueError):
    """Unusable TLS options; the text is the reason."""


def certificate_context(options: TLSOptions, protocol: int = ssl.PROTOCOL_TLS_SERVER) -> ssl.SSLContext:
    """Returns a context with the server's certificate and authority. Raises `TLSError`."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        load_certificate(context, options)
    except (OSError, ValueError) as problem:
        raise TLSError(f"error parsing X509 certificate/key pair: {_reason(problem)}") from None
    if options.ca is not None:
        try:
            context.load_verify_locations(options.ca)
        except (OSError, ssl.SSLError) as problem:
            raise TLSError(f"failed to parse root ca certificate: {_reason(problem)}") from None
    return context


def server_context(options: TLSOptions) -> ssl.SSLContext:
    context = certificate_context(options)
    if options.verify or options.verify_and_map:
        if options.ca is None:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
    _restrict(context, options)
    return context


def load_certificate(context: ssl.SSLContext, options: TLSOptions) -> None:
    """Loads certificate and key; with the option `insecure` also weak ones, then for clients as well.

    Raises `OSError` (`ssl.SSLError`) for an unreadable or invalid file, `ValueError` for a key with a password.
    """
    try:
        context.load_cert_chain(options.cert, options.key, password=_no_password)
    except ssl.SSLError as problem:
        if not options.insecure or not too_weak(problem):
            raise
        # Keep the cipher suites.
        names = [each["name"] for each in context.get_ciphers() if each["name"] not in _TLS13]
        context.set_ciphers(":".join([*names, "@SECLEVEL=0"]))
        context.load_cert_chain(options.cert, options.key, password=_no_password)


def too_weak(problem: Exception) -> bool:
    """Returns whether OpenSSL refuses a certificate only for its strength."""
    return isinstance(problem, ssl.SSLError) and (problem.reason or "").endswith(("_TOO_WEAK", "_TOO_SMALL"))


def _no_password() -> str:
    # Otherwise OpenSSL would ask for the password on the terminal.
    raise ValueError("the private key is encrypted")


def _reason(problem: OSError | ValueError) -> str:
    if isinstance(problem, ssl.SSLError):
        return problem.reason or "not PEM"
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename or 'file'}: {problem.strerror}"
    return str(problem)


def _restrict(context: ssl.SSLContext, options: TLSOptions) -> None:
    older = []
    for name in options.ciphers:
        if name in _TLS13:
            continue
        if name not in CIPHERS:
            raise TLSError(f"unrecognized cipher {name}")
        older.append(CIPHERS[name])
    if options.ciphers and not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    elif older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise TLSError(f"none of the cipher suites is available: {', '.join(options.ciphers)}") from None
    for name in options.curves:
        if name not in CURVES:
            raise TLSError(f"unrecognized curve preference {name}")
    # OpenSSL takes a single curve here; for several, its own choice among all curves is better.
    if len(options.curves) == 1:
        context.set_ecdh_curve(CURVES[options.curves[0]])


def names(connection: ssl.SSLObject | None) -> tuple[str, ...]:
    """Returns the names in a client's certificate; empty without one."""
    raw: Any = connection.getpeercert(binary_form=True) if connection is not None else None
    try:
        return certificate_names(raw) if raw else ()
    except ValueError:
        return ()


def file_names(path: Path) -> tuple[str, ...]:
    """Returns the names in the first certificate of a PEM file. Raises `TLSError`."""
    try:
        text = path.read_text("ascii", "replace")
        end = text.index(_END) + len(_END)
        return certificate_names(ssl.PEM_cert_to_DER_cert(text[text.index(_BEGIN) : end]))
    except OSError as problem:
        raise TLSError(f"error reading client certificate {path}: {problem.strerror or problem}") from None
    except ValueError:
        raise TLSError(f"error reading client certificate {path}: it contains no certificate") from None


def certificate_names(raw: bytes) -> tuple[str, ...]:
    """Returns the names in a certificate: e-mail addresses, host names, URIs, the subject's distinguished name.

    Raises `ValueError` if it is no certificate.
    """
    # Loaded only for client certificates.
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(raw)
    found: list[str] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        pass
    else:
        for kind in (x509.RFC822Name, x509.DNSName, x509.UniformResourceIdentifier):
            found += extension.value.get_values_for_type(kind)
    found.append(certificate.subject.rfc4514_string())
    return tuple(found)


def handshake_problem(problem: BaseException) -> str:
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or str(problem)).replace("_", " ").lower()
    if isinstance(problem, TimeoutError) or "timeout" in str(problem).lower() or "longer than" in str(problem):
        return "timeout"
    return str(problem) or "EOF"
