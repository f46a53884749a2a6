"""Writing what is published and reading what is answered: the compiled kernels where they were built, else the plain.

The environment variable `STANTOOLS_KERNELS` forces one, as for `stantools.format.kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.format.choice import choose

_kernels = choose("stantools.migration.publish")

#: Which kernels are in use: "native" or "plain".
NAME: str = _kernels.NAME

if TYPE_CHECKING:
    from stantools.migration.publish.plain import check_answers, encode_publishes
else:
    check_answers = _kernels.check_answers
    encode_publishes = _kernels.encode_publishes

__all__ = ["NAME", "check_answers", "encode_publishes"]
