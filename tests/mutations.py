"""Applying the golden mutations, and generating damages of our own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.conftest import GOLDEN, MUTATION_SETS, load_expected


def apply_mutation(root: Path, mutation: dict[str, Any]) -> None:
    """Applies one mutation of the golden collections to a copy of their store."""
    path, op = root / mutation["file"], mutation["op"]
    if op == "set":
        _overwrite(path, mutation["offset"], bytes([mutation["value"]]))
    elif op == "setbytes":
        _overwrite(path, mutation["offset"], bytes.fromhex(mutation["hex"]))
    elif op == "truncate":
        os.truncate(path, mutation["offset"])
    elif op == "append":
        path.write_bytes(path.read_bytes() + bytes.fromhex(mutation["hex"]))
    elif op == "append_zeros":
        path.write_bytes(path.read_bytes() + bytes(mutation["count"]))
    elif op == "delete":
        path.unlink()
    else:
        raise AssertionError(f"unknown mutation {mutation}")


def _overwrite(path: Path, offset: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(new)] = new
    path.write_bytes(data)


def fresh_copy(source: Path, target: Path) -> Path:
    """Copies a store to a writable place, replacing what was there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def shares(every: int) -> list[Any]:
    """Parameters (collection, every): one of so many mutations in every run, and all of them in the slow one."""
    some = [pytest.param(case, every, id=f"{case}-some") for case in MUTATION_SETS]
    return [*some, *(pytest.param(case, 1, id=f"{case}-all", marks=pytest.mark.slow) for case in MUTATION_SETS)]


def mutated_stores(case: str, work: Path, every: int = 1) -> Iterator[tuple[dict[str, Any], Path]]:
    """Gives mutations of a golden collection with a copy of the store to which each was applied.

    Args:
        case: The collection.
        work: Where the copies go, one at a time.
        every: One of so many.
    """
    for mutation in load_expected(case)["mutations"][::every]:
        root = fresh_copy(GOLDEN / case / "datastore", work / "store")
        apply_mutation(root, mutation)
        yield mutation, root


def damages(files: list[str], sizes: dict[str, int]) -> st.SearchStrategy[dict[str, Any]]:
    """Generates one damage to one of the files, in the form of the golden mutations."""

    def of_file(file: str) -> st.SearchStrategy[dict[str, Any]]:
        offset = st.integers(0, max(sizes[file] - 1, 0))
        return st.one_of(
            st.builds(lambda o, v: {"file": file, "op": "set", "offset": o, "value": v}, offset, st.integers(0, 255)),
            st.builds(
                lambda o, b: {"file": file, "op": "setbytes", "offset": o, "hex": b.hex()},
                offset,
                st.one_of(st.binary(min_size=1, max_size=48), st.integers(1, 200).map(bytes)),
            ),
            st.builds(lambda o: {"file": file, "op": "truncate", "offset": o}, offset),
            st.builds(lambda b: {"file": file, "op": "append", "hex": b.hex()}, st.binary(min_size=1, max_size=80)),
            st.builds(lambda n: {"file": file, "op": "append_zeros", "count": n}, st.integers(1, 5000)),
            st.just({"file": file, "op": "delete"}),
        )

    return st.sampled_from(files).flatmap(of_file)
