"""Pages that are lists of links."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 2em }} li {{ padding: .2em 0 }}</style>
</head>
<body>
<h1>{title}</h1>
<ul>
{items}
</ul>
</body>
</html>
"""


def page(title: str, links: Iterable[tuple[str, str]]) -> bytes:
    """Returns a page of links.

    Args:
        title: Its title.
        links: Where they lead, relative to the page, and what is there.
    """
    items = "\n".join(f'<li><a href="{escape(path)}">{escape(text)}</a></li>' for path, text in links)
    return _PAGE.format(title=escape(title), items=items).encode()
