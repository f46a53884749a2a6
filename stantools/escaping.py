"""Names and payloads made safe to show: nothing in them reaches a terminal as more than text."""

from __future__ import annotations


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
    """Makes a text of one line safe to print, in which names may stand that hold line breaks."""
    return escape_lines(text).replace("\n", "\\n")


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
