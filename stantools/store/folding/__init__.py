"""Folding the records of a subs.dat into rows of numbers: compiled where a compiler was at hand, else in Python.

Both twins keep for each subscription a few numbers and the place of the record that describes it, and for all of them
together one set of pending sequences, so that a million durables take some tens of megabytes. What is not plainly as
the server writes it is left to the caller (`stantools.store.sublog`), record by record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.store.folding.plain import Fold

__all__ = ["Fold"]

use("stantools.store.folding", globals(), __all__)
