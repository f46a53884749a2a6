import mmap

class Guard:
    """Watches over one mapping, from `watch` to `leave`."""

    fault: int  #: offset of the first page that could not be had, in bytes; -1 if there was none

    def watch(self, mapping: mmap.mmap) -> None:
        """Begins to guard a mapping; it must not be unmapped before `leave`."""
    def leave(self) -> None:
        """Ends it; `fault` stays."""
