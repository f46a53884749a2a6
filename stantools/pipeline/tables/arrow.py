"""Arrow: pyarrow where it is installed, else the part of it that csv and ndjson need, in Python.

Modules that make or pass on rows for an export take `pa` and `pc` from here. Parquet and Spark need pyarrow itself.
"""

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
        from stantools.pipeline.tables import plain as pa

        pc: Any = None  #: Arrow's kernels; None without pyarrow.

__all__ = ["pa", "pc"]
