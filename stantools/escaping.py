"""Names and payloads made safe to print: nothing in them reaches a terminal as more than text."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from unicodedata import combining, east_asian_width

#: a command in a text, up to the end of its words
_COMMAND = re.compile(r"\b(?:stantools|chown) [^`;,()\n]*")
#: text that is not broken into lines: a command in backticks, or one up to the end of its clause
UNBROKEN = re.compile(rf"`[^`]*`|{_COMMAND.pattern}")


#: Texts with private directories of this program, and what the user knows in their place, the longest first.
_shown: dict[re.Pattern[str], str] = {}


def show_as(root: Path, archive: str, opened: str, shown: str) -> None:
    """Lets all output name an archive in place of the private directory with its content.

    `opened` is the directory in it that `shown` stands for; other paths are shown as parts of `archive`.
    """
    if opened:
        _shown[re.compile(re.escape(os.fspath(root / opened)) + r"(?![\w./-])")] = shown
    _shown[re.compile(re.escape(os.fspath(root)) + r"(?![\w.-])")] = archive


def known(text: str) -> str:
    """Returns a text with the names that the user knows in place of those of private directories."""
    for private, name in _shown.items() if _shown else ():
        text = private.sub(name.replace("\\", "\\\\"), text)
    return text


def text(value: bytes) -> str:
    """Decodes stored bytes; bytes that are not UTF-8 become surrogate escapes, as in file names."""
    return value.decode("utf-8", "surrogateescape")


def columns_of(character: str) -> int:
    """Returns the columns of a terminal that a printable character takes: two if it is wide."""
    return 2 if east_asian_width(character) in "WF" else 0 if combining(character) else 1


def escape(text: str | bytes) -> str:
    r"""Makes a name or a payload safe to print: control characters become `\xNN` or `\uNNNN`, other bytes `\xNN`.

    Terminal escapes, line breaks, bidirectional overrides and bytes that are not UTF-8 never pass. The backslash is
    doubled, so the result is unambiguous.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    text = known(text)
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape_character, text))


def escape_lines(text: str) -> str:
    text = known(text)
    return "\n".join(line if line.isprintable() else escape(line) for line in text.split("\n"))


def escape_line(text: str) -> str:
    """Makes one line of text safe to print, including line breaks inside names."""
    return escape_lines(text).replace("\n", "\\n")


def shell_word(text: str) -> str:
    r"""Writes a name as one word of a shell: quoted where necessary, as `$'…'` where it is not printable."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join("\\'" if character == "'" else _escape_character(character) for character in text) + "'"


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """Replaces placeholders in commands (`STORE`, `NEW`, `CHANNEL`, `FILE`) so that the commands can be pasted.

    Placeholders that `names` lacks stay.
    """
    if not names:
        return text
    word = re.compile(rf"(--[\w-]+ )?(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")

    def filled(command: re.Match[str]) -> str:
        last: list[str] = []  # a name that looks like an option counts as one unless it follows `--`

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
    """Returns the values of STORE and NEW in commands about a store: its path, and a free path beside it.

    The new store of a URL is in the current directory.
    """
    name = str(path)
    place = Path(name.rpartition("/")[2] if "://" in name else name)
    return {"STORE": name, "NEW": str(beside(place, "salvaged"))}


def beside(path: Path, suffix: str) -> Path:
    """Returns a free path beside a directory or an archive: `STORE.salvaged`, `STORE.salvaged-2`."""
    path = Path(known(str(path)))
    if path.name in ("", ".."):  # the current directory, or one above
        path = Path(os.path.realpath(path))
    path = path if path.name else Path("store")  # the root directory has no siblings
    path = next((each for each in path.parents if each.is_file()), path)  # nothing can be beside a part of an archive
    path = _outside_streams(path)
    names = (f"{path.name}.{suffix}{number}" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    return next((new for name in names if not os.path.lexists(new := path.with_name(name))), path)


def _outside_streams(path: Path) -> Path:
    """Returns where a path would be beside the folder of JetStream around it: a server takes what is in it for data."""
    parts = path.absolute().parts
    for at in (number for number, part in enumerate(parts[:-1]) if part == "jetstream"):
        if parts[at + 2 : at + 3] == ("streams",) or (len(parts) == at + 2 and (path / "streams").is_dir()):
            return Path(*parts[:at], path.name)
    return path


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0x7F:  # higher ones are several bytes in UTF-8
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
