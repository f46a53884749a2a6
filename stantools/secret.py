"""Keys, passwords and tokens: given directly, or by the variable or file that holds them where they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreUnreadableError, UsageError, readable
from stantools.escaping import escape

#: bytes of a key file that are read; keys are shorter
_KEY_SIZE = 1 << 16


@dataclass(frozen=True)
class Secret:
    """A secret. It can be sent to another machine, which looks up variables and files anew."""

    value: bytes | None = field(default=None, repr=False)
    variable: str | None = None  #: name of the environment variable that holds it
    file: Path | None = None  #: the file that holds it; a trailing line break is ignored

    @property
    def given(self) -> bool:
        """Whether a secret was given; its variable or file need not exist."""
        return self != Secret()

    def words(self, option: str) -> tuple[str, ...]:
        """Returns the words of a command that give it again, by `option-file` or `option-env`."""
        if self.file is not None:
            return (f"{option}-file", str(self.file))
        return (f"{option}-env", self.variable) if self.variable is not None else ()

    def key(self) -> bytes | None:
        """Returns the encryption key; None if none was given."""
        if self.variable is not None:
            return self._from_environment(self.variable)
        return self.value if self.file is None else _read_key(self.file)

    def word(self, noun: str) -> str | None:
        """Returns the password or token, called `noun` in messages; None if none was given."""
        if self.file is not None:
            return _read_word(self.file, noun)
        word = self.value if self.variable is None else self._from_environment(self.variable)
        return None if word is None else word.decode("utf-8", "surrogateescape")

    @staticmethod
    def _from_environment(variable: str) -> bytes:
        if value := os.environb.get(os.fsencode(variable)):
            return value
        raise UsageError(f"the environment variable {escape(variable)} is not set", "export it first")


def read_secret(path: Path, *, limit: int = 1 << 20) -> bytes:
    """Reads a small file with a key or certificate; StoreUnreadableError if it is empty or over `limit` bytes."""
    try:
        with readable(path, "check the path and its permissions"), path.open("rb") as file:
            content = file.read(limit + 1)
    except ValueError as problem:  # a zero byte in the path
        raise UsageError("the path of a file holds a zero byte", "check the path") from problem
    if not content.strip():
        raise StoreUnreadableError(f"{path}: is empty", "give the right file")
    if len(content) > limit:
        raise StoreUnreadableError(f"{path}: is too large for a file of its kind", "give the right file")
    return content


def _read_word(path: Path, noun: str) -> str:
    try:
        return read_secret(path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise StoreUnreadableError(f"{path}: holds no text", f"give the file with the {noun}") from None


def _read_key(path: Path) -> bytes:
    with readable(path), path.open("rb") as file:
        key = file.read(_KEY_SIZE)
    key = key.removesuffix(b"\n").removesuffix(b"\r")
    if not key:
        raise UsageError(f"{path}: holds no key", "the file must hold the key and nothing else")
    return key
