"""Certificates and accounts for the tests: an authority for TLS, and an operator who signs accounts and users."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
import os
from pathlib import Path
from typing import Any

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority that signs certificates. Files are made in a folder: `<name>.pem` and `<name>-key.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.path = self._write(name, builder.sign(self._key, hashes.SHA256()), self._key)[0]

    def issue(self, name: str, *hosts: str, passphrase: bytes | None = None) -> tuple[Path, Path]:
        """A certificate and its key for hosts and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = _builder(_name(name), self._name, key)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key, passphrase)

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None
    ) -> tuple[Path, Path]:
        path, key_path = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        hiding = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hiding))
        return path, key_path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )


def new_pair(prefix: int = nkeys.PREFIX_BYTE_USER) -> tuple[str, str]:
    """A new nkey: its seed and its public key."""
    seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
    pair = nkeys.from_seed(bytearray(seed))
    return seed.decode(), pair.public_key.decode()


class Operator:
    """An operator with one account, and users of it."""

    def __init__(self, limits: dict[str, Any] | None = None) -> None:
        self._seed, self._public = new_pair(nkeys.PREFIX_BYTE_OPERATOR)
        self._account_seed, self._account = new_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        _, self._system = new_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        self._limits = {**unlimited, "wildcards": True, **(storage if limits is None else limits)}

    def config(self) -> dict[str, Any]:
        """Members for a server's configuration."""
        plain = {"limits": {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1}}
        return {
            "operator": self._sign(self._public, "O", {"type": "operator", "system_account": self._system}),
            "resolver": "MEMORY",
            "system_account": self._system,
            "resolver_preload": {
                self._account: self._sign(self._account, "A", {"type": "account", "limits": self._limits}),
                self._system: self._sign(self._system, "SYS", {"type": "account", **plain}),
            },
        }

    def write_user(self, path: Path, *, expired: bool = False) -> Path:
        """A credentials file for a new user."""
        seed, public = new_pair()
        limits = {"subs": -1, "data": -1, "payload": -1, "type": "user"}
        token = self._sign(public, "U", limits, seed=self._account_seed, issuer=self._account, expired=expired)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
        return path

    def _sign(
        self, subject: str, name: str, facts: dict[str, Any], *, seed: str = "", issuer: str = "", expired: bool = False
    ) -> str:
        claims: dict[str, Any] = {
            "iat": 1_600_000_000,
            "iss": issuer or self._public,
            "name": name,
            "sub": subject,
            "nats": {**facts, "version": 2},
        }
        if expired:
            claims["exp"] = 1_600_000_001
        digest = hashlib.new("sha512_256", json.dumps(claims, separators=(",", ":")).encode()).digest()
        claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
        text = ".".join(map(_encode, ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)))
        signature = nkeys.from_seed(bytearray((seed or self._seed).encode())).sign(text.encode())
        return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _encode(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")
