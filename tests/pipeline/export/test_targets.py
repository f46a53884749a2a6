"""Where an export goes: there as a whole or not at all; nothing is replaced that is not asked for, or is not ours."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.pipeline.export import targets
from stantools.pipeline.tables.model import StoreRef
from stantools.store.atomic import json_object


def export(target: Path, text: str, *, overwrite: bool = False) -> None:
    with targets.new_export(target, overwrite=overwrite) as directory:
        (directory / "part").write_text(text)
        targets.finish(directory, {"rows": 1})


def save(target: Path, text: str, *, overwrite: bool = False) -> None:
    with targets.new_file(target, overwrite=overwrite) as path, targets.writer(path) as write:
        write(text.encode())


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_new_directory(tmp_path: Path) -> None:
    export(tmp_path / "out", "one")
    assert names(tmp_path / "out") == [targets.SUCCESS, targets.MANIFEST, "part"]
    assert json_object(tmp_path / "out" / targets.MANIFEST, own=True) == {
        "schema": 1,
        "made_by": "stantools",
        "rows": 1,
    }
    assert names(tmp_path) == ["out"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(tmp_path / "out", "one", overwrite=True)
    assert (tmp_path / "out" / "part").read_text() == "one"


def test_an_earlier_export_is_replaced_when_asked_for(tmp_path: Path) -> None:
    export(tmp_path / "out", "one")
    with pytest.raises(StoreUnwritableError, match="exists already") as caught:
        export(tmp_path / "out", "two")
    assert "--overwrite" in caught.value.remedy
    assert (tmp_path / "out" / "part").read_text() == "one"
    export(tmp_path / "out", "two", overwrite=True)
    assert (tmp_path / "out" / "part").read_text() == "two"
    assert names(tmp_path) == ["out"]


def test_what_is_no_export_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(StoreUnwritableError, match="not empty") as caught:
        export(tmp_path / "out", "one")
    assert "--overwrite" not in caught.value.remedy
    with pytest.raises(RefusedError, match="is not an export of stantools"):
        export(tmp_path / "out", "one", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="is not an export"):
        export(tmp_path / "file", "one", overwrite=True)
    assert names(tmp_path / "out") == ["mine"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    for overwrite in (False, True):
        with (
            pytest.raises(ValueError, match="gone"),
            targets.new_export(tmp_path / "out", overwrite=overwrite) as place,
        ):
            (place / "part").touch()
            raise ValueError("gone")
        assert names(tmp_path) == (["out"] if overwrite else [])
        if not overwrite:
            export(tmp_path / "out", "one")
    assert (tmp_path / "out" / "part").read_text() == "one"


def test_a_run_that_was_killed_while_it_replaced_is_cleared_up(tmp_path: Path) -> None:
    export(tmp_path / "out", "one")
    export(tmp_path / ".out.stantools-replaced", "older")
    export(tmp_path / "out", "two", overwrite=True)
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "part").read_text() == "two"


def test_a_new_file(tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    save(target, "one")
    with pytest.raises(StoreUnwritableError, match="exists already") as caught:
        save(target, "two")
    assert "--overwrite" in caught.value.remedy
    save(target, "two", overwrite=True)
    assert target.read_text() == "two" and names(tmp_path) == ["x.csv"]


def test_a_file_is_not_put_over_other_things(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(StoreUnwritableError, match="is not a file"):
            save(tmp_path / name, "one", overwrite=True)
    with pytest.raises(StoreUnwritableError, match=r"the directory .* does not exist"):
        save(tmp_path / "missing" / "x", "one")


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone"), targets.new_file(tmp_path / "x", overwrite=False) as path:
        path.write_text("half")
        raise ValueError("gone")
    assert names(tmp_path) == []


def test_something_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreUnwritableError, match="exists already"),
        targets.new_file(tmp_path / "x", overwrite=False) as path,
    ):
        path.write_text("ours")
        (tmp_path / "x").write_text("theirs")
    assert (tmp_path / "x").read_text() == "theirs"


def test_the_rest_of_a_killed_run_is_replaced_and_a_running_one_is_not(tmp_path: Path) -> None:
    rest = tmp_path / ".x.stantools-partial"
    (rest / "content").mkdir(parents=True)
    (rest / "state.json").write_text('{"made_by": "stantools"}')
    (rest / "content" / "x").write_text("a long rest of another run")
    descriptor = os.open(rest, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(RefusedError, match="another run is writing there"):
        save(tmp_path / "x", "one")
    os.close(descriptor)
    save(tmp_path / "x", "one")
    assert (tmp_path / "x").read_text() == "one" and names(tmp_path) == ["x"]


def test_nothing_goes_into_a_store(tmp_path: Path) -> None:
    (tmp_path / "store" / "orders").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    plan = SimpleNamespace(stores=[StoreRef("s3://x", 1), StoreRef(str(tmp_path / "store"), 1)])
    for place in ("store", "store/out", "store/orders/out", "link/out"):
        with pytest.raises(RefusedError, match="is inside the store"):
            targets.check_outside(tmp_path / place, plan)
    targets.check_outside(tmp_path / "out", plan)
    targets.check_outside(tmp_path / "store2", plan)
    (tmp_path / "store" / "msgs.1.dat").touch()
    targets.check_outside(tmp_path / "store/out", plan)
