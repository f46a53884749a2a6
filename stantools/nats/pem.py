"""Diagnosis of the files of a certificate and its key, in words that name the file and the error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
#: maximum bytes of a certificate file
_MAX_BYTES: Final = 1 << 20
#: the start of DER: a sequence with a length of two bytes
_DER: Final = b"\x30\x82"


def certificate_problem(cert: Path, key: Path) -> str:
    """Returns why a certificate and a private key cannot be used together; empty if unknown."""
    certificate, private = _labels(cert), _labels(key)
    if not _has_certificate(certificate):
        if _has_key(certificate):
            swapped = " (certificate and key are swapped)" if _has_certificate(private) else ""
            return f"{cert} holds a private key and no certificate{swapped}"
        return f"{cert} {_content_problem(cert, certificate, 'certificate')}"
    if not _has_key(private):
        if _has_certificate(private):
            return f"{key} holds a certificate and no private key"
        return f"{key} {_content_problem(key, private, 'private key')}"
    if b"ENCRYPTED PRIVATE KEY" in private or b"Proc-Type: 4,ENCRYPTED" in _read(key):
        return f"the private key in {key} is encrypted"
    return "" if _keys_match(cert, key) else f"the private key in {key} is not that of the certificate in {cert}"


def authority_problem(path: Path) -> str:
    """Returns why a file holds no certificates of authorities; empty if unknown."""
    labels = _labels(path)
    if _has_certificate(labels):
        return f"a certificate in {path} is damaged"
    if _has_key(labels):
        return f"{path} holds a private key and no certificate"
    return f"{path} {_content_problem(path, labels, 'certificate')}"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except (OSError, ValueError):
        return b""


def _labels(path: Path) -> list[bytes]:
    return _LABEL.findall(_read(path))


def _has_certificate(labels: list[bytes]) -> bool:
    return any(label in (b"CERTIFICATE", b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE") for label in labels)


def _has_key(labels: list[bytes]) -> bool:
    return any(label.endswith(b"PRIVATE KEY") for label in labels)


def _content_problem(path: Path, labels: list[bytes], wanted: str) -> str:
    content = _read(path)
    if not content.strip():
        return f"is empty: it should hold a {wanted} in PEM form"
    if content.startswith(_DER):
        return f"holds no {wanted} in PEM form; it looks like DER, which `openssl` converts"
    if labels:
        return f"holds no {wanted}, but: {labels[0].decode().lower()}"
    return f"holds no {wanted} in PEM form"


def _keys_match(cert: Path, key: Path) -> bool:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        private = load_pem_private_key(_read(key), None).public_key()
        public = x509.load_pem_x509_certificate(_read(cert)).public_key()
    except Exception:
        # Unknown: the text of OpenSSL must suffice.
        return True
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return private.public_bytes(*form) == public.public_bytes(*form)
