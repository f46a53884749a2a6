"""Files that get shorter while they are mapped: an exit code and a message, in every verb, every worker, the broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import others_slow
from tests.cutting import CLIENTS, DATA, INDEX, LEFT, SUBS, environment, write_store
from tests.pipeline.conftest import TEST_CONF, skip_without_spark


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole") / "store"
    write_store(place)
    return place


def program(folder: Path, cut: Path, *words: object, exit_code: int) -> str:
    """Runs a program that finds `cut` shorter than it was, and says so; returns what it said."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        env=os.environ | environment(folder, cut),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert cut.stat().st_size == LEFT, (done.stdout, done.stderr)
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    said = " ".join(done.stderr.replace("\\n", " ").split())
    assert f"{cut.name}: was truncated while it was read: it had" in said
    assert f"now has {LEFT}; expected was a file that only grows" in said
    assert "Traceback" not in done.stderr
    return said


#: Verbs that read in processes of their own, and in this one; each kind of file.
VERBS = [
    ("subs STORE", SUBS),
    ("clients STORE", CLIENTS),
    ("verify STORE", DATA),
    ("forecast STORE", INDEX),
    ("salvage STORE --out OUT", DATA),
    ("migrate STORE --out OUT --plan PLAN --yes", DATA),
    ("export STORE --to OUT --format ndjson", DATA),
]
#: The other verbs, and files that they read in other ways.
OTHERS = [
    ("info STORE", SUBS),
    ("messages STORE foo", DATA),
    ("records STORE/foo/msgs.1.dat", DATA),
    ("doctor STORE", DATA),
    ("verify STORE", INDEX),
    ("truncate-bad-eof STORE --dry-run", INDEX),
    ("compact STORE --out OUT", DATA),
    ("diff STORE OTHER", DATA),
    ("info STORE", CLIENTS),
    ("info STORE", INDEX),
    ("messages STORE foo --tail 5", INDEX),
    ("records STORE/foo/subs.dat", SUBS),
    ("verify STORE", SUBS),
    ("verify STORE", CLIENTS),
    ("forecast STORE", SUBS),
    ("salvage STORE --out OUT", SUBS),
    ("compact STORE --out OUT", SUBS),
    ("migrate STORE --out OUT --plan PLAN --yes", SUBS),
]


@pytest.mark.parametrize(
    ("arguments", "file"), [*VERBS, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_every_verb(whole: Path, tmp_path: Path, arguments: str, file: str) -> None:
    store = shutil.copytree(whole, tmp_path / "store")
    names = {
        "STORE": str(store),
        "OTHER": str(whole),
        "OUT": str(tmp_path / "out"),
        "PLAN": str(tmp_path / "plan.yaml"),
    }
    for name, value in names.items():
        arguments = arguments.replace(name, value)
    said = program(tmp_path / "site", store / file, "stantools", *arguments.split(), exit_code=3)
    assert "stop all writes to the store" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", others_slow([DATA, INDEX, SUBS, CLIENTS], {DATA, SUBS}))
def test_the_broker(whole: Path, tmp_path: Path, file: str) -> None:
    store = shutil.copytree(whole, tmp_path / "store")
    words = ("broker", "-a", "127.0.0.1", "-p", "-1", "-st", "FILE", "-dir", store)
    said = program(tmp_path / "site", store / file, *words, exit_code=1)
    assert f"[FTL] STREAM: Failed to start: {store / file}: was truncated" in said
    assert "Server Exiting.." in said


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_worker_of_spark(whole: Path, tmp_path: Path) -> None:
    """The job goes on with the other store."""
    skip_without_spark()
    store = shutil.copytree(whole, tmp_path / "store")
    conf = [word for key, value in TEST_CONF.items() for word in ("--conf", f"{key}={value}")]
    words = ("stantools", "pipeline", "verify", store, whole, "--master", "local[2]", *conf)
    said = program(tmp_path / "site", store / DATA, *words, exit_code=1)
    assert f"error: {store / DATA}: was truncated" in said and "stop all writes to the store" in said
