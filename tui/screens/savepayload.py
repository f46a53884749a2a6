"""Writing a payload to a file of the user's choice, never into the store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stantools.browse.payload_views import Form, likely_form
from stantools.browse.window import WindowMessage
from stantools.errors import StoreUnwritableError

_ENDINGS = {Form.JSON: "json", Form.TEXT: "txt", Form.PROTOBUF: "bin", Form.HEX: "bin"}
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
_LONGEST = 80


def file_name(channel: str, message: WindowMessage) -> str:
    """Proposes a name for the file of a payload; there is nothing in it but letters, digits, dots and dashes."""
    name = _UNSAFE.sub("_", channel)[:_LONGEST].lstrip(".-") or "message"
    return f"{name}-{message.sequence}.{_ENDINGS[likely_form(message.data)]}"


def save_problem(text: str, store: Path) -> str:
    """Says why a name cannot be taken, "" if it can.

    Args:
        text: What the user typed.
        store: The store, which is never written to.
    """
    if not text.strip():
        return "name a file"
    try:
        path = Path(text).expanduser().resolve()
        if path.is_dir():
            return "that is a directory"
        if path.is_relative_to(store.resolve()):
            return "that is in the store, which is only read; choose another place"
        if not path.parent.is_dir():
            return "there is no such directory"
    except (OSError, ValueError, RuntimeError) as problem:
        return f"that is no name for a file: {problem}"
    return ""


def write_payload(path: Path, data: bytes, *, over: bool) -> None:
    """Writes a file.

    Args:
        path: Where.
        data: What.
        over: Replace a file that is there.

    Raises:
        StoreUnwritableError: It cannot be written, or is there already.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o666), "wb") as file:  # noqa: PTH123
            file.write(data)
    except OSError as problem:
        raise StoreUnwritableError(
            f"{path}: cannot be written: {problem.strerror}", "choose another name or place"
        ) from problem
