"""Comparing messages: the compiled kernel where it was built, else the plain one (same results)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose
from stantools.migration.proof.plain import Mark, is_extended

_kernels = choose("stantools.migration.proof")

#: Which kernel is in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.proof.plain import compare_messages
else:
    compare_messages = _kernels.compare_messages

__all__ = ["NAME", "Mark", "compare_messages", "is_extended"]
