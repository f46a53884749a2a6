"""TLS: the context for connections, from the options."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import StoreUnreadableError

if TYPE_CHECKING:
    from stantools.migration.target.options import ConnectOptions


def tls_context(options: ConnectOptions) -> ssl.SSLContext:
    """Returns the context that checks the server's certificate and holds ours.

    Raises:
        StoreUnreadableError: A file holds no certificate or key, or they do not belong together.
    """
    try:
        context = ssl.create_default_context(cafile=str(options.tls_ca) if options.tls_ca else None)
    except OSError as problem:
        raise _unfit(options.tls_ca, "certificates of authorities", problem) from problem
    if options.tls_cert and options.tls_key:
        try:
            # An empty answer: a key with a passphrase would otherwise ask for it on the terminal.
            context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: b"")
        except OSError as problem:
            raise _unfit(options.tls_cert, f"a certificate that fits the key {options.tls_key}", problem) from problem
    if options.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _unfit(path: Path | None, expected: str, problem: OSError) -> StoreUnreadableError:
    reason = problem.strerror or getattr(problem, "reason", None) or str(problem)
    return StoreUnreadableError(
        f"{path}: expected {expected} in PEM form: {reason}",
        "check the files; a key must have no passphrase",
    )
