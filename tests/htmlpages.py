"""What is in a page of HTML."""

from __future__ import annotations

import html.parser
from collections import Counter
from typing import Self

#: Elements without an end.
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


class Tags(html.parser.HTMLParser):
    """The elements of a page, all and those of its article, its text, what it loads, and where its links go."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.article: Counter[str] = Counter()
        self.text = ""
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self._open: list[str] = []

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads a page; elements that are not closed in their order fail."""
        tags = cls()
        tags.feed(text)
        tags.close()
        assert not tags._open, tags._open
        return tags

    @property
    def alone(self) -> bool:
        """Nothing in the page is loaded from elsewhere or runs because of an attribute."""
        return all(link.startswith("#") for link in self.links) and not self.handlers

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.article[tag] += "article" in self._open
        links = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        self.links += links
        if tag != "a" and (tag != "link" or dict(attrs).get("rel") not in ("canonical", "next", "prev")):
            self.loaded += links
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        if tag in ("td", "th"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data
