"""Keys, passwords and tokens: as they are, or where they are found at the place where they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreUnreadableError, UsageError, readable
from stantools.escaping import escape

#: A key is shorter; more of the file is not read.
_KEY_SIZE = 1 << 16


@dataclass(frozen=True)
class Secret:
    """A secret. It can be sent to another machine, where variables and files are looked up anew."""

    value: bytes | None = field(default=None, repr=False)  #: the secret itself
    variable: str | None = None  #: the environment variable that holds it
    file: Path | None = None  #: the file that holds it; a line break at its end does not count

    @property
    def given(self) -> bool:
        """Whether there is one; whether it can be found is not looked at."""
        return self != Secret()

    def key(self) -> bytes | None:
        """Returns the encryption key that it is; None if none was given.

        Raises:
            StoreUnreadableError: The file cannot be read.
            UsageError: The variable is not set, or the file is empty.
        """
        if self.variable is not None:
            return self._from_environment(self.variable)
        return self.value if self.file is None else _read_key(self.file)

    def word(self, what: str) -> str | None:
        """Returns the password or token that it is; None if none was given.

        Args:
            what: What it is called in messages.

        Raises:
            StoreUnreadableError: The file cannot be read, is empty or too large, or holds no text.
            UsageError: The variable is not set.
        """
        if self.file is not None:
            return _read_word(self.file, what)
        word = self.value if self.variable is None else self._from_environment(self.variable)
        return None if word is None else word.decode("utf-8", "surrogateescape")

    @staticmethod
    def _from_environment(variable: str) -> bytes:
        if value := os.environb.get(os.fsencode(variable)):
            return value
        raise UsageError(f"the environment variable {escape(variable)} is not set", "export it first")


def read_secret(path: Path, *, limit: int = 1 << 20) -> bytes:
    """Reads a small file that holds a key, a certificate or the like.

    Args:
        path: The file.
        limit: More bytes than this cannot be right.

    Raises:
        StoreUnreadableError: It cannot be read, is empty or too large.
    """
    try:
        with readable(path, "check path and rights"), path.open("rb") as file:
            content = file.read(limit + 1)
    except ValueError as problem:  # a zero byte in the path
        raise UsageError("the path of a file holds a zero byte", "check the path") from problem
    if not content.strip():
        raise StoreUnreadableError(f"{path}: is empty", "give the right file")
    if len(content) > limit:
        raise StoreUnreadableError(f"{path}: is too large for what it should hold", "give the right file")
    return content


def _read_word(path: Path, what: str) -> str:
    try:
        return read_secret(path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise StoreUnreadableError(f"{path}: holds no text", f"give the file with the {what}") from None


def _read_key(path: Path) -> bytes:
    with readable(path), path.open("rb") as file:
        key = file.read(_KEY_SIZE)
    key = key.removesuffix(b"\n").removesuffix(b"\r")
    if not key:
        raise UsageError(f"{path}: holds no key", "the file has to hold the key and nothing else")
    return key
