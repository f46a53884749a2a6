"""pyarrow where it is installed, else None: without it, the table of messages can be exported as csv and ndjson."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        pa: Any = None
        pc: Any = None

__all__ = ["pa", "pc"]
