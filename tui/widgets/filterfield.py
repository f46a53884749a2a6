"""A field for the text that rows are filtered by, which is there only while it is needed."""

from __future__ import annotations

from textual.widgets import Input


class FilterField(Input):
    """A field that comes with `/` and stays as long as it holds a text.

    Args:
        placeholder: What can be typed.
        id: Its id.
    """

    def __init__(self, placeholder: str, *, id: str) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True)
        self.display = False

    def ask(self) -> None:
        """Comes up, to be typed into."""
        self.display = True
        self.focus()

    def settle(self) -> None:
        """The text is typed: without one the field goes."""
        self.display = bool(self.value)

    def put_away(self) -> None:
        """Goes, and takes its text along."""
        self.value = ""
        self.display = False
