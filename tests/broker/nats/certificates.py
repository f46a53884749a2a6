"""Certificates for the tests: an authority, a server, a client, and a stranger."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Party:
    """Somebody with a certificate."""

    cert: Path
    key: Path
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey


def party(folder: Path, name: str, issuer: Party | None = None, *, email: str = "", unit: str = "") -> Party:
    private = ec.generate_private_key(ec.SECP256R1())
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    subject = x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.private.public_key())
        builder = builder.add_extension(identifier, critical=False)
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        if email:
            names = [x509.RFC822Name(email)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign((issuer.private if issuer else private), hashes.SHA256())
    cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return Party(cert, key, certificate, private)


def old_certificate(folder: Path) -> tuple[Path, Path]:
    """Returns certificate and key of a server as they were made long ago: from an authority, signed with SHA-1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here, which signs with SHA-1")

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("-newkey", "rsa:2048", "-nodes", "-subj")
    run("req", "-x509", "-sha1", "-days", "9999", "-keyout", "old-ca.key", "-out", "old-ca.pem", *new, "/CN=old")
    run("req", "-keyout", "old.key", "-out", "old.csr", *new, "/CN=localhost")
    signed = ("-CA", "old-ca.pem", "-CAkey", "old-ca.key", "-CAcreateserial", "-sha1", "-days", "9999")
    run("x509", "-req", "-in", "old.csr", "-out", "old.pem", *signed)
    return folder / "old.pem", folder / "old.key"
