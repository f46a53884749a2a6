"""`export` on the command line: what comes out, what is told, every way it can end."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.cli.expected import key_of
from tests.conftest import load_expected

#: Healthy, damaged, with other CRCs, encrypted, of other ages.
CASES = ["basic", "crc_castagnoli", "dmg_length_flip_noidx", "dmg_payload_flip_noidx", "archived_bak", "gap_filled"]
SAME = ("seq", "timestamp_ns", "subject", "reply", "data", "size")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store", SampleOptions(channels=2))
    return tmp_path / "store"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store", SampleOptions(channels=2, damage=["flipped-length", "flipped-byte"]))
    return tmp_path / "store"


def check_same_messages(run, store: Path, *options: object, **how: object) -> None:
    exported = run("export", store, "--to", "-", "--archived", *options, **how)
    assert exported.code in (0, 1), exported.err
    rows = [row for row in exported.ndjson() if row["status"] in ("ok", "repaired")]
    for channel in {row["channel"] for row in rows}:
        printed = run("messages", store, channel, "-o", "ndjson", "--archived", *options, **how).ndjson()
        mine = [row for row in rows if row["channel"] == channel]
        assert [{name: row[name] for name in SAME} for row in mine] == [
            {name: row[name] for name in SAME} for row in printed
        ]
        assert [row["timestamp"] for row in mine] == [row["time"][:-4] + "Z" for row in printed]


@pytest.mark.parametrize("case", CASES)
def test_ndjson_has_what_messages_prints(run, golden: Path, case: str) -> None:
    check_same_messages(run, golden / case / "datastore")


def test_encrypted_payloads(run, golden: Path) -> None:
    cases = [path.name for path in sorted(golden.glob("encrypt*")) if (path / "expected.json").exists()]
    key = key_of(cases[0]) or load_expected(cases[0])["options"]["encryption"]["key"]
    store = golden / cases[0] / "datastore"
    check_same_messages(run, store, "--encryption-key-env", "THE_KEY", env={"THE_KEY": key})
    wrong = run("export", store, "--to", "-", "--encryption-key-env", "THE_KEY", env={"THE_KEY": "wrong"})
    assert wrong.code == 1 and all(row["status"] == "sealed" for row in wrong.ndjson() if row["size"])
    unset = run("export", store, "--to", "-", "--encryption-key-env", "NO_SUCH_KEY")
    assert unset.code == 2 and "NO_SUCH_KEY" in unset.err


def test_a_directory(run, store: Path, tmp_path: Path) -> None:
    outcome = run("export", store, "--to", tmp_path / "out")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.startswith(f"200 rows of the table messages in {tmp_path / 'out'}: 1 file, ")
    assert outcome.out.endswith(", parquet (snappy)\n")
    again = run("export", store, "--to", tmp_path / "out")
    assert again.code == 3 and "exists already" in again.err and "--overwrite" in again.err
    replaced = run("export", store, "--to", tmp_path / "out", "--overwrite", "--channel", "orders", "-o", "json")
    said = replaced.json()
    assert (said["schema"], said["written"], said["clean"], said["rows"]) == (1, True, True, 100)
    assert said["selection"]["channels"] == ["orders"] and said["target"] == str(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "_stantools-export.json").read_text())
    assert {name: said[name] for name in manifest if name != "made_by"} == {
        name: value for name, value in manifest.items() if name != "made_by"
    }


def test_the_name_says_the_format(run, store: Path, tmp_path: Path) -> None:
    assert run("export", store, "--to", tmp_path / "x.csv.gz", "--columns", "SEQ,channel").code == 0
    rows = list(csv.reader(gzip.decompress((tmp_path / "x.csv.gz").read_bytes()).decode().splitlines()))
    assert rows[0] == ["seq", "channel"] and len(rows) == 201
    assert run("export", store, "--to", tmp_path / "x.parquet", "--seq", "5:6").code == 0
    assert pq.read_table(tmp_path / "x.parquet").column("seq").to_pylist() == [5, 6, 5, 6]
    assert run("export", store, "--to", f"{tmp_path}/y.parquet/", "--by", "channel").code == 0
    assert (tmp_path / "y.parquet" / "channel=orders").is_dir()
    assert run("export", store, "--to", tmp_path / "x.jsonl", "--until", "1d").code == 0
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 200


def test_damage_is_exported_and_told(run, damaged: Path, tmp_path: Path) -> None:
    outcome = run("export", damaged, "--to", tmp_path / "out")
    assert outcome.code == 1
    assert "2 rows of the table messages report problems: " in outcome.err and "stantools verify" in outcome.err
    statuses = pq.read_table(tmp_path / "out" / "part-00000.parquet").column("status").to_pylist()
    assert sorted(set(statuses)) == ["ok", "payload", "repaired"] and len(statuses) == 200
    dropped = run("export", damaged, "--to", "-", "--mode", "dropmalformed", "--columns", "seq")
    assert dropped.out.count("\n") == 199
    failed = run("export", damaged, "--to", tmp_path / "x.csv", "--mode", "FAILFAST")
    assert failed.code == 3 and "offset" in failed.err and "  -> " in failed.err
    assert not (tmp_path / "x.csv").exists()


def test_what_cannot_be_read_is_told_and_the_rest_is_done(run, store: Path, tmp_path: Path) -> None:
    outcome = run("export", store, tmp_path / "missing", "--to", tmp_path / "out", "-o", "json")
    assert outcome.code == 1 and "missing: no such file" in outcome.err
    said = outcome.json()
    assert said["failed"][0]["path"] == str(tmp_path / "missing") and not said["clean"]
    assert said["status"] == {"ok": 200, "unreadable": 1}
    assert run("export", tmp_path / "missing", "--to", tmp_path / "o").code == 3
    assert not (tmp_path / "o").exists()


def test_a_dry_run_writes_nothing(run, store: Path, tmp_path: Path) -> None:
    outcome = run("export", store, "--to", tmp_path / "out", "--by", "channel,date", "--dry-run")
    assert outcome.code == 0 and "would write the table messages of 1 store to" in outcome.out
    said = run("export", store, "--to", tmp_path / "x.csv", "--dry-run", "-o", "json").json()
    assert (said["written"], said["format"], said["compression"], said["parts"]) == (False, "csv", "none", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--to", "out", "--channel", "nope"], 2, "no channel of any store matches nope"),
        (["--to", "out", "--seq", "-5:"], 2, "counts from the end"),
        (["--to", "out", "--since", "1d", "--until", "2d"], 2, "select an empty range"),
        (["--to", "out", "--columns", "sequence"], 2, "no column 'sequence'"),
        (["--to", "out", "--by", "hour"], 2, "cannot be divided by 'hour'"),
        (["--to", "x.csv", "--by", "channel"], 2, "names a single file"),
        (["--to", "x.csv", "--format", "parquet"], 2, "the name implies csv"),
        (["--to", "x.csv.gz", "--compression", "zstd"], 2, "the name implies gzip"),
        (["--to", "-", "--format", "parquet"], 2, "cannot be written to a stream"),
        (["--to", "-", "-o", "json"], 2, "both use stdout"),
        (["--to", "x.csv", "--compression", "snappy"], 2, "cannot be compressed with snappy"),
        (["--to", "out", "--table", "clients", "--seq", "1:2"], 2, "the table clients has none"),
        (["--to", "s3://bucket/out"], 2, "is a URL"),
        (["--to", "missing/out"], 3, "there is no directory"),
        (["--to", "missing/x.csv"], 3, "does not exist"),
        (["--to", "store/out"], 4, "is inside the store"),
        (["--to", "store", "--overwrite"], 4, "is inside the store"),
        (["--to", "mine", "--overwrite"], 4, "is not an export of stantools"),
        (["--to", "mine"], 3, "not empty"),
        ([], 2, "--to"),
    ],
)
def test_what_is_refused(
    run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    outcome = run("export", "store", *arguments)
    assert outcome.code == code and words in outcome.err and "  -> " in outcome.err
    assert outcome.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "store"]


def test_bounds_that_leave_nothing_are_no_mistake(run, store: Path, tmp_path: Path) -> None:
    outcome = run("export", store, "--to", tmp_path / "out", "--channel", "orders", "--seq", "1000:")
    assert outcome.code == 0 and outcome.out.startswith("0 rows ")


#: runs commands as after `pip install .`: without the packages of the optional parts
PLAIN_INSTALLATION = """
import json, os, sys
sys.modules.update(dict.fromkeys(["pyarrow", "duckdb", "pyspark", "pandas", "cramjam", "zstandard", "fsspec"]))
from click.testing import CliRunner
from stantools.cli.main import cli
def run(place, words):
    os.chdir(place)
    done = CliRunner().invoke(cli, ["export", *words], prog_name="stantools")
    return done.exit_code, done.stdout, done.stderr
json.dump([run(*command) for command in json.loads(sys.argv[1])], sys.stdout)
"""


def test_exports_of_the_guides_after_a_plain_installation(store: Path, tmp_path: Path) -> None:
    """Messages can be exported as text; every other export names the packages, and writes nothing."""
    root = Path(__file__).parents[2]
    pages = "".join(
        (root / page).read_text("utf-8") for page in ("README.md", "docs/tour.md", "docs/pipeline-guide.md")
    )
    commands = dict.fromkeys(re.findall(r"^(?:    |\$ )?stantools export ([^#|\n]*)", pages, re.MULTILINE))
    words = [
        [str(store) if word in ("store", "datastore", "/archive/*") else word for word in line.split()]
        for line in commands
    ]
    places = [tmp_path / str(number) for number in range(len(words))]
    for place in places:
        place.mkdir()
    runs = json.dumps([[str(place), each] for place, each in zip(places, words, strict=True)])
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_INSTALLATION, runs], capture_output=True, check=True, timeout=120
    )
    text = 0
    for line, place, (code, out, err) in zip(commands, places, json.loads(done.stdout), strict=True):
        if "--table" not in line.split() and re.search(r"csv|ndjson", line):
            assert code == 0 and out, (line, err)
            text += 1
        else:
            assert code == 3 and "needs pyarrow" in err and not list(place.iterdir()), line
    assert text >= 2 and len(commands) > 2 * text


def test_pyarrow_is_missing(run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyarrow" else find(name, *more)
    )
    for name, what in (("out", "Parquet"), ("out.csv.zst", "zstd compression"), ("out.sqlite", "SQLite")):
        outcome = run("export", store, "--to", tmp_path / name)
        assert outcome.code == 3 and outcome.err.startswith(f"stantools: error: {what} needs pyarrow"), outcome.err
        assert "pip install 'pyarrow>=17'; or choose csv or ndjson" in outcome.err
    outcome = run("export", store, "--table", "findings", "--to", tmp_path / "findings.csv")
    assert outcome.code == 3 and "the table findings needs pyarrow" in outcome.err
    assert run("export", store, "--to", tmp_path / "out.csv.gz").code == 0


@pytest.mark.golden
def test_nodes_of_a_cluster_are_told_to_be_merged(run, golden_clusters: Path, tmp_path: Path) -> None:
    nodes = golden_clusters / "snapshots" / "nodes"
    for table, words, told in (
        ("messages", (nodes,), "the export has them once per node"),
        ("messages", (nodes / "a",), ""),
        ("slices", (nodes,), ""),
        ("subscriptions", (nodes / "a",), "are in their Raft logs, not in their stores"),
        ("clients", (nodes / "a" / "data",), "are in their Raft logs, not in their stores"),
    ):
        outcome = run("export", *words, "--table", table, "--to", "-")
        assert outcome.code == 0
        assert (told in outcome.err) if told else not outcome.err, table
    assert run("merge", *sorted(nodes.iterdir()), "--out", tmp_path / "new").code == 0
    merged = run("export", tmp_path / "new", "--table", "subscriptions", "--to", "-")
    assert merged.code == 0 and len(merged.ndjson()) == 10 and not merged.err


def test_a_target_is_required(run, store: Path) -> None:
    outcome = run("export", store)
    assert outcome.code == 2 and "Missing option '--to'" in outcome.err


def test_ciphertext_is_not_exported_in_silence(run, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sample key")
    key = ("--encryption-key-file", tmp_path / "key")
    assert run("sample", tmp_path / "store", "--channels", 2, *key).code == 0
    told = "may be encrypted, and are written as stored"
    for target in (tmp_path / "messages.csv", "-"):
        outcome = run("export", tmp_path / "store", "--to", target)
        assert outcome.code == 0 and told in outcome.err and "--encryption-key-env" in outcome.err
    for words in (key, ("--columns", "seq,size"), ("--table", "slices")):
        assert told not in run("export", tmp_path / "store", "--to", "-", *words).err


def test_streams_among_stores_have_a_command_that_works(run, store: Path, tmp_path: Path) -> None:
    streams = Path(__file__).parents[2] / "samples" / "streams-damaged"
    mixed = run("export", streams, store, "--to", tmp_path / "both.csv")
    assert mixed.code == 1
    words = re.search(r"`stantools (export .*) --to NEW` writes it", mixed.err)
    assert words, mixed.err
    assert run(*words[1].split(), "--to", tmp_path / "streams.csv").code == 1
    assert "ORDERS" in (tmp_path / "streams.csv").read_text()
