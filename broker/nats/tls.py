"""TLS contexts from options, and the names in client certificates."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.nats.options import TLSOptions

#: IANA names of cipher suites before TLS 1.3, and what OpenSSL calls them.
_CIPHERS: Final = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
#: TLS 1.3 always has all of its own.
_TLS13: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}


class TLSError(ValueError):
    """TLS options that cannot be used; the text says why."""


def server_context(options: TLSOptions) -> ssl.SSLContext:
    """Returns the context of a listener.

    Raises:
        TLSError: A file cannot be read or does not fit, or a cipher suite or curve is not known.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as problem:
        raise TLSError(f"error parsing X509 certificate/key pair: {_said(problem)}") from None
    if options.ca is not None:
        try:
            context.load_verify_locations(options.ca)
        except (OSError, ssl.SSLError) as problem:
            raise TLSError(f"failed to parse root ca certificate: {_said(problem)}") from None
    elif options.verify or options.verify_and_map:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.verify or options.verify_and_map:
        context.verify_mode = ssl.CERT_REQUIRED
    _restrict(context, options)
    return context


def _said(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLError):
        return problem.reason or "not PEM"
    return f"{problem.filename or 'file'}: {problem.strerror}" if problem.strerror else str(problem)


def _restrict(context: ssl.SSLContext, options: TLSOptions) -> None:
    older = []
    for name in options.ciphers:
        if name in _TLS13:
            continue
        if name not in _CIPHERS:
            raise TLSError(f"unrecognized cipher {name}")
        older.append(_CIPHERS[name])
    if options.ciphers and not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    elif older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise TLSError(f"none of the cipher suites is available: {', '.join(options.ciphers)}") from None
    for name in options.curves:
        if name not in _CURVES:
            raise TLSError(f"unrecognized curve preference {name}")
    # OpenSSL takes one from here; with several, its own choice among all of them is better.
    if len(options.curves) == 1:
        context.set_ecdh_curve(_CURVES[options.curves[0]])


def names(connection: ssl.SSLObject | None) -> tuple[str, ...]:
    """Returns who a client is by its certificate: e-mail addresses, host names, the subject's distinguished name."""
    raw: Any = connection.getpeercert(binary_form=True) if connection is not None else None
    if not raw:
        return ()
    # Loaded only where there are client certificates.
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(raw)
    except ValueError:
        return ()
    found: list[str] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        pass
    else:
        found += extension.value.get_values_for_type(x509.RFC822Name)
        found += extension.value.get_values_for_type(x509.DNSName)
    found.append(certificate.subject.rfc4514_string())
    return tuple(found)
