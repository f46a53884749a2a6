"""What the command line says about itself (server-operations.md section 2)."""

from __future__ import annotations

from broker.config.catalogue import FLAGS, Flag, Kind, State
from broker.config.natstls import CIPHERS, CURVES
from broker.nats.options import VERSION as NATS_VERSION
from broker.streaming.options import VERSION

_COLUMN = 42
_KINDS = {Kind.STRING: " <string>", Kind.INT: " <int>", Kind.DURATION: " <duration>", Kind.SIZE: " <size>"}


def version_line() -> str:
    """Returns the answer to `--version`."""
    return f"nats-streaming-server version {VERSION}, nats-server: v{NATS_VERSION}"


def overview() -> str:
    """Returns the overview of all options."""
    lines = ["", "Usage: nats-streaming-server [options]"]
    for section in FLAGS:
        lines += ["", f"{section.title}:"]
        for entry in section.entries:
            if isinstance(entry, Flag):
                names = ", ".join(f"-{name}" if len(name) < 4 else f"--{name}" for name in entry.names)
                left = f"    {names}{_KINDS.get(entry.kind, '')}"
                # At least two blanks, in the next line if there is no room for them.
                gap = " " * (_COLUMN - len(left)) if len(left) < _COLUMN - 1 else f"\n{' ' * _COLUMN}"
                lines.append(f"{left}{gap}{entry.help}{_notes(entry)}")
    return "\n".join((*lines, ""))


def tls_help() -> str:
    """Returns the answer to `--help_tls`."""
    lines = [
        "",
        "TLS configuration of the embedded NATS server, in the configuration file:",
        "",
        "tls {",
        '    cert_file: "certificate.pem"',
        '    key_file: "key.pem"',
        '    ca_file: "ca.pem"          # of client certificates',
        "    verify: true               # clients have to show one",
        '    cipher_suites: [ "..." ]',
        '    curve_preferences: [ "..." ]',
        "}",
        "",
        "Cipher suites:",
        *(f"    {name}" for name in CIPHERS),
        "",
        "Curves:",
        *(f"    {name}" for name in CURVES),
        "",
    ]
    return "\n".join(lines)


def _notes(entry: Flag) -> str:
    default = f" (default: {entry.default})" if entry.default not in ("", "false") else ""
    return f"{default} [{entry.state}]" if entry.state is State.UNAVAILABLE else default
