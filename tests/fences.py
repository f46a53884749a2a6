"""Data between two pages that must not be touched: whoever reads beyond it ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def fenced(data: bytes, *, at_end: bool) -> Iterator[Any]:
    """The data with a page before and behind it that must not be touched; at the end or the start of its own."""
    page = mmap.PAGESIZE
    pages = -(-max(len(data), 1) // page)
    area = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    offset = page + (pages * page - len(data) if at_end else 0)
    area[offset : offset + len(data)] = data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    fences = [ctypes.c_void_p(start), ctypes.c_void_p(start + (pages + 1) * page)]
    for fence in fences:
        assert protect(fence, ctypes.c_size_t(page), 0) == 0
    view = memoryview(area)[offset : offset + len(data)]
    try:
        yield view
    finally:
        for fence in fences:
            assert protect(fence, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE) == 0
        view.release()
