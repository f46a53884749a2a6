"""Verify on Spark says of every store what the local verify says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stantools.errors import ExitCode
from stantools.inspection import survey_jobs
from stantools.inspection.verify import verify
from stantools.store.read_options import open_store
from tests.conftest import KINDS_OF_STORES, golden_cases
from tests.pipeline.jobs.jobcommand import run, sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

LOCAL = ("--master", "local[2]")


def local(store: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(verify(open_store(store)).as_json()))
    return stripped(found)


def stripped(store: dict[str, Any]) -> dict[str, Any]:
    """Takes off what only the job says, and how long it took."""
    return {key: value for key, value in store.items() if key not in ("store", "seconds")}


@pytest.mark.parametrize(
    ("channel_bytes", "cases"),
    [
        pytest.param(0, sorted(KINDS_OF_STORES), id="slices"),
        pytest.param(1 << 40, sorted(KINDS_OF_STORES)[::3], id="channels"),
        pytest.param(0, golden_cases(), marks=pytest.mark.slow, id="slices-all"),
        pytest.param(1 << 40, golden_cases(), marks=pytest.mark.slow, id="channels-all"),
    ],
)
def test_golden_stores_are_judged_as_by_the_local_verify(
    channel_bytes: int, cases: list[str], spark: SparkSession, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both where channels are surveyed slice by slice and where they are surveyed as a whole."""
    monkeypatch.setattr(survey_jobs, "CHANNEL_BYTES", channel_bytes)
    stores = [golden / case / "datastore" for case in cases]
    stores = [store for store in stores if store.is_dir()]
    result = run("pipeline", "verify", *LOCAL, "-o", "json", *stores, code=ExitCode.FINDINGS)
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["clean"] is False
    assert document["failed"] == []
    got = {store["store"]: stripped(store) for store in document["stores"]}
    assert list(got) == [str(store) for store in stores], "in the order in which they were given"
    for store in stores:
        assert got[str(store)] == local(store), store


def test_many_stores_in_a_directory_and_an_archive_of_slices(spark: SparkSession, tmp_path: Path) -> None:
    healthy = sample(tmp_path / "all" / "2024" / "healthy")
    damaged = sample(tmp_path / "all" / "damaged", "--seed", 2, "--damage", "flipped-byte")
    channel = next(path for path in sorted(healthy.iterdir()) if path.is_dir())
    archive = tmp_path / "all" / "archive"
    archive.mkdir()
    for path in channel.glob("msgs.*"):
        shutil.copy(path, archive / f"{path.name}.bak")
    broken = archive / "msgs.2.dat.bak"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)

    result = run(
        *("pipeline", "verify", *LOCAL, "-o", "json", "--progress", "json"),
        *(tmp_path / "all", tmp_path / "nothing*", tmp_path / "gone"),
        code=ExitCode.FINDINGS,
    )
    document = json.loads(result.stdout)
    assert {Path(each["store"]).name: each["clean"] for each in document["stores"]} == {
        "healthy": True,
        "damaged": False,
        "archive": False,
    }
    by_name = {Path(each["store"]).name: each for each in document["stores"]}
    assert stripped(by_name["damaged"]) == local(damaged)
    (loose,) = by_name["archive"]["channels"]
    assert (loose["name"], loose["messages"]) == (channel.name, 99)
    findings = {(each["code"], each["file"]) for each in by_name["archive"]["findings"]}
    assert ("slice-bad-payload", "msgs.2.dat.bak") in findings
    assert all(code.startswith(("slice-", "index-", "sequence")) for code, _ in findings), "of the slices alone"

    assert [each["path"] for each in document["failed"]] == [str(tmp_path / "nothing*"), str(tmp_path / "gone")]
    assert "nothing matches the pattern" in result.stderr
    assert "gone: no such file or directory" in result.stderr
    last = json.loads([line for line in result.stderr.splitlines() if line.startswith('{"progress"')][-1])
    assert last["bytes"] == last["total"] > 0
    assert last["findings"] > 0
    # Of jobs that are over before anybody looks nothing is known.
    assert last.get("tasks") == last.get("tasks_total") != 0

    table = run("pipeline", "verify", *LOCAL, tmp_path / "all", code=ExitCode.FINDINGS).stdout
    assert "2 of 3 stores have findings" in table
    assert "slice-bad-payload" in table
    csv = run("pipeline", "verify", *LOCAL, "-o", "csv", damaged, code=ExitCode.FINDINGS).stdout
    assert csv.startswith("store,code,severity,file,")
    assert f"{damaged},slice-bad-payload,error," in csv
    one = run("pipeline", "verify", *LOCAL, healthy, "--channel", channel.name, code=ExitCode.CLEAN).stdout
    assert f"{channel.name}  " in one
    assert "clean: " in one


def test_stores_behind_urls_are_copied_to_where_they_are_read(spark: SparkSession, tmp_path: Path) -> None:
    store = sample(tmp_path / "store", "--damage", "flipped-byte")
    archive = tmp_path / "archive"
    archive.mkdir()
    for path in next(path for path in sorted(store.iterdir()) if path.is_dir()).glob("msgs.*"):
        shutil.copy(path, archive / f"{path.name}.bak")
    urls = [f"simplecache::file://{path}" for path in (store, archive)]
    result = run("pipeline", "verify", *LOCAL, "-o", "json", *urls, code=ExitCode.FINDINGS)
    document = json.loads(result.stdout)
    assert document["failed"] == []
    first, second = document["stores"]
    assert stripped(first) == local(store)
    assert sum(channel["messages"] for channel in second["channels"]) == 100
