"""Migrating many stores on Spark does what the local verb does with each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode
from stantools.migration.journal import StreamState, remembered_streams
from stantools.migration.workflow import default_plan_file
from stantools.store.sample import SampleOptions, write_sample
from tests.migration.reading import consumers_of, read_stream
from tests.pipeline.spark.sinking import kill_clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def run(*words: object, code: ExitCode) -> Any:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def pipeline(*words: object, code: ExitCode) -> Any:
    """Runs the job and returns its json, or what it printed."""
    result = run("pipeline", "migrate", "--master", "local[2]", *words, code=code)
    return json.loads(result.stdout) if "json" in words and result.stdout else result


def plain(store: dict[str, Any]) -> dict[str, Any]:
    """Results without what only the job says, and what is different each time."""
    left = {key: value for key, value in store.items() if key not in ("store", "target", "schema")}
    for stream in left["streams"]:
        for name in ("seconds", "compare_seconds"):
            del stream[name]
    return left


def contents(url: str, stream: str, *, times: bool = True) -> list[Any]:
    seen = asyncio.run(read_stream(url, stream))
    return [(each.sequence, times and each.timestamp, each.subject, each.headers, each.data) for each in seen]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stores")
    found = []
    for number in range(2):
        root = folder / f"node{number}" / f"store-{number}"
        root.parent.mkdir()
        write_sample(root, SampleOptions(seed=number, messages=120, size=64, gaps=True))
        found.append(root)
    return found


def test_many_stores(
    spark: SparkSession,
    stores: list[Path],
    start_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    local, cluster = start_server(), start_server()
    apart = ("--stream-prefix", "{store}-", "--subject-prefix", "{store}")
    common = ("--yes", "-o", "json", "--progress", "none")
    # The same names in two stores: nothing is begun.
    result = run(
        "pipeline", "migrate", "--master", "local[2]", *stores, "--server", cluster.url, *common, code=ExitCode.REFUSED
    )
    assert "nothing was changed" in result.stderr and "--stream-prefix '{store}-'" in result.stderr
    assert list(tmp_path.glob("*.yaml*")) == []
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "server.dat").write_bytes(b"")
    (broken / "server.dat").chmod(0)
    said = pipeline(*stores, tmp_path / "nowhere", "--server", cluster.url, *apart, *common, code=ExitCode.FINDINGS)
    assert said["schema"] == 1 and said["clean"] is False
    assert [each["path"] for each in said["failed"]] == [str(tmp_path / "nowhere")]
    assert [each["store"] for each in said["stores"]] == [str(root) for root in stores]
    for root, got in zip(stores, said["stores"], strict=True):
        prefix = ("--stream-prefix", f"{root.name}-", "--subject-prefix", root.name)
        mine = run(
            "migrate",
            root,
            "--server",
            local.url,
            *prefix,
            *common,
            "--plan",
            f"{root.name}.local.yaml",
            code=ExitCode.CLEAN,
        )
        assert plain(got) == plain(json.loads(mine.stdout))
        for stream in got["streams"]:
            name = stream["stream"]
            assert stream["outcome"] == "migrated" and stream["compared"] == stream["messages"]
            # Reading leaves a consumer of its own.
            assert set(asyncio.run(consumers_of(cluster.url, name))) == set(asyncio.run(consumers_of(local.url, name)))
            assert contents(cluster.url, name) == contents(local.url, name)
        steps = remembered_streams(default_plan_file(root))
        assert {entry["state"] for entry in steps.values()} == {StreamState.PROVEN}
        assert len(steps) == len(got["streams"])
    # Again, without journals, and compared only.
    said = pipeline(*stores, "--server", cluster.url, *apart, *common, code=ExitCode.CLEAN)
    outcomes = {stream["outcome"] for store in said["stores"] for stream in store["streams"]}
    assert said["clean"] and outcomes == {"complete before"}
    said = pipeline(*stores, "--server", cluster.url, *apart, "--verify", *common, code=ExitCode.CLEAN)
    assert {stream["outcome"] for store in said["stores"] for stream in store["streams"]} == {"compared"}
    result = run("pipeline", "migrate", *stores, "--server", cluster.url, *apart, "--dry-run", code=ExitCode.CLEAN)
    assert "node0/store-0" in result.stdout and "store-1-" in result.stdout


def test_by_publishing_and_to_backups(
    spark: SparkSession,
    stores: list[Path],
    start_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    server = start_server()
    damaged = tmp_path / "damaged"
    run("sample", damaged, "--seed", 3, "--damage", "flipped-byte", "--slice-msgs", 40, code=ExitCode.CLEAN)
    words = (damaged, "--server", server.url, "--via", "publish", "--yes", "-o", "json")
    result = run("pipeline", "migrate", "--master", "local[2]", *words, code=ExitCode.REFUSED)
    assert f"1 message is missing in 1 of 1 store: {damaged}" in result.stderr and "--accept-loss" in result.stderr
    said = pipeline(*words, "--accept-loss", code=ExitCode.LOSS)
    assert said["clean"] and said["stores"][0]["lost"] == 1
    said = pipeline(*words, "--accept-loss", "--verify", code=ExitCode.CLEAN)
    assert said["clean"]
    out = tmp_path / "backups"
    said = pipeline(stores[0], "--out", out, "--plans", tmp_path / "plans", "--yes", "-o", "json", code=ExitCode.CLEAN)
    assert {stream["outcome"] for stream in said["stores"][0]["streams"]} == {"written"}
    assert all((out / stream["stream"] / "backup.json").is_file() for stream in said["stores"][0]["streams"])
    assert (tmp_path / "plans" / "store-0.migration.yaml.journal").is_file()
    for words, code, text in (
        ((stores[0], "--server", "embedded"), ExitCode.USAGE, "tasks cannot reach --server embedded"),
        ((stores[0], "--server", "nats://127.0.0.1:1"), ExitCode.UNREACHABLE, "cannot connect"),
        ((tmp_path / "nowhere", "--server", server.url), ExitCode.UNREACHABLE, "nowhere"),
    ):
        result = run("pipeline", "migrate", "--master", "local[2]", *words, "--yes", code=code)
        assert text in result.stderr


@pytest.mark.slow
def test_a_worker_is_killed(
    spark: SparkSession,
    start_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    server = start_server()
    root = tmp_path / "big"
    write_sample(root, SampleOptions(channels=2, messages=20_000, size=200))
    words = (root, "--server", server.url, "--via", "publish", "--yes", "-o", "json", "--progress", "none")
    largest = "orders"
    killer = threading.Thread(target=kill_clients, args=(server, largest, 2000))
    killer.start()
    result = run("pipeline", "migrate", "--master", "local[2]", *words, code=ExitCode.UNREACHABLE)
    killer.join()
    assert "worker died" in result.stderr
    said = pipeline(*words, code=ExitCode.CLEAN)
    assert said["clean"]
    outcomes = {stream["stream"]: stream["outcome"] for stream in said["stores"][0]["streams"]}
    assert outcomes[largest] == "continued"
    plan = json.loads(run("info", root, "-o", "json", code=ExitCode.CLEAN).stdout)
    counts = {channel["name"].replace(".", "_"): channel["count"] for channel in plan["channels"]}
    for stream in said["stores"][0]["streams"]:
        assert stream["messages"] == stream["compared"] == counts[stream["stream"]]
