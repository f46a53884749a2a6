import mmap

class Guard:
    """Guards one mapping against faults, from `watch` to `leave`."""

    fault: int  #: offset in bytes of the first page that could not be read; -1 if there was none

    def watch(self, mapping: mmap.mmap) -> None:
        """Starts to guard a mapping; it must not be unmapped before `leave`."""
    def leave(self) -> None:
        """Ends the guard; `fault` stays."""
