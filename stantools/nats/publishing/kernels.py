"""The publishing kernels: the compiled ones where they were built, else the plain ones (same results).

The environment variable `STANTOOLS_KERNELS` forces one, as for the kernels of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stantools.format.choice import use

if TYPE_CHECKING:
    from stantools.nats.publishing.plain import check_answers, encode_publishes, read_origins

__all__ = ["check_answers", "encode_publishes", "read_origins"]

#: The most messages that may be on their way to a stream without being answered: its queue in the server is bounded.
MAX_WINDOW: Final = 4096

#: Which kernels are in use: "native" or "plain".
NAME: str = use("stantools.nats.publishing", globals(), __all__)
