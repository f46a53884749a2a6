"""Names and payloads made safe to show: nothing in them reaches a terminal as more than text."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

#: A command in a text, as far as its words go.
_COMMAND = re.compile(r"\b(?:stantools|chown) [^`;,()\n]*")
#: What is not broken into lines: a command in backticks, or up to the end of its clause.
UNBROKEN = re.compile(rf"`[^`]*`|{_COMMAND.pattern}")


def text(value: bytes) -> str:
    """Returns stored bytes as text; what is not UTF-8 becomes surrogate escapes, as in file names."""
    return value.decode("utf-8", "surrogateescape")


def escape(text: str | bytes) -> str:
    r"""Makes a name or a payload safe to print: control characters and the like become `\xNN` or `\uNNNN`.

    Terminal escapes, line breaks, bidirectional overrides and bytes that are not UTF-8 cannot come through,
    and the backslash is doubled, so that what is printed is unambiguous.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape_character, text))


def escape_lines(text: str) -> str:
    """Makes a text of several lines safe to print; its line breaks stay."""
    return "\n".join(line if line.isprintable() else escape(line) for line in text.split("\n"))


def escape_line(text: str) -> str:
    """Makes a text of one line safe to print, which may contain names with line breaks."""
    return escape_lines(text).replace("\n", "\\n")


def shell_word(text: str) -> str:
    r"""Writes a name as one word of a shell: quoted where it has to be, `$'…'` where it cannot be printed."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join("\\'" if character == "'" else _escape_character(character) for character in text) + "'"


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """Replaces the placeholders in commands by names, so that they can be pasted.

    Args:
        text: A remedy, in which commands say `STORE`, `NEW`, `CHANNEL` or `FILE`.
        names: Such words and what they stand for; the others stay.
    """
    if not names:
        return text
    word = re.compile(rf"(--[\w-]+ )?(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")

    def filled(command: re.Match[str]) -> str:
        last: list[str] = []  # a name like an option counts as one unless it comes after `--`

        def name(found: re.Match[str]) -> str:
            value = shell_word(names[found[2]])
            if found[1] or not value.startswith("-"):
                return (found[1] or "") + value
            last.append(value)
            return ""

        words = word.sub(name, command[0])
        return f"{re.sub('  +', ' ', words).rstrip()} -- {' '.join(last)}" if last else words

    return _COMMAND.sub(filled, text)


def store_names(path: Path | str) -> dict[str, str]:
    """Returns the values of STORE and NEW in commands about a store: it, and a name for a salvaged one beside it."""
    return {"STORE": str(path), "NEW": str(beside(Path(path), "salvaged"))}


def beside(path: Path, suffix: str) -> Path:
    """Returns a name beside a directory that nothing has yet: `STORE.salvaged`, `STORE.salvaged-2`."""
    if path.name in ("", ".."):  # the current directory, or one above
        path = path.resolve()
    path = path if path.name else Path("store")  # nothing is beside the root of all directories
    names = (f"{path.name}.{suffix}{number}" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    return next((new for name in names if not os.path.lexists(new := path.with_name(name))), path)


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
