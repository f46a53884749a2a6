"""Syntax trees of the project's own code."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def syntax_tree(path: Path) -> ast.Module:
    """Parses a file without collecting garbage.

    CPython 3.11 fails if a finalizer that runs meanwhile prints a traceback, which parses as well (its issue 106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collects:
            gc.enable()
