"""What is in a directory, to see whether anything has changed."""

from __future__ import annotations

from pathlib import Path


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory: what each file holds, None for a directory."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def dated(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """The same, and when each was written last."""
    return {name: ((root / name).stat().st_mtime_ns, content) for name, content in tree(root).items()}
