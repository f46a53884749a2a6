"""`verify`, `forecast`, `salvage` and `sample` as commands: output, exit codes, what is changed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.format.crc import IEEE, Crc
from stantools.inspection.advice import PLACEHOLDER
from stantools.inspection.catalogue import CATALOGUE
from stantools.recovery.salvage import check
from stantools.store.damage import DAMAGES
from stantools.store.directory import open_datastore
from stantools.store.locks import QUIET_SECONDS
from stantools.store.sample import SampleOptions, write_sample
from stantools.streaming.client import Message, Start, SubscriptionOptions, connect
from tests.brokers import Broker
from tests.conftest import golden_cases, load_expected, others_slow
from tests.trees import tree

Copy = Callable[[str], Path]
SOME = [case for i, case in enumerate(golden_cases()) if i % 6 == 0 and "opened_as" not in load_expected(case)]


@pytest.mark.parametrize("case", others_slow(SOME, SOME[::2]))
def test_verify(run, golden_copy: Copy, case: str) -> None:
    store, expected = golden_copy(case), load_expected(case)
    before = tree(store)
    outcome = run("verify", store, "-o", "json")
    verdict = outcome.json()
    assert outcome.code == (0 if verdict["clean"] else 1)
    assert {finding["code"] for finding in verdict["findings"]} <= set(CATALOGUE)
    assert set(verdict) == {"schema", "clean", "findings", "channels", "bytes_scanned", "seconds"}
    for channel in verdict["channels"]:
        facts = expected.get("salvage", {}).get("messages", {}).get(channel["name"])
        if facts:
            assert channel["intact"] == facts["intact"] or "header" in str(facts)
    assert tree(store) == before
    table = run("verify", store)
    assert table.code == outcome.code
    assert ("not clean" in table.out) != verdict["clean"]
    lines = run("verify", store, "-o", "ndjson").ndjson()
    assert [line["code"] for line in lines] == [finding["code"] for finding in verdict["findings"]]
    assert run("verify", store, "-o", "csv").out.startswith("code,severity,file,offset")


def test_verify_takes_channels(run, golden: Path) -> None:
    store = golden / "dmg_payload_flip_idx_intact" / "datastore"
    assert run("verify", store, "--channel", "beta.*").code == 0
    assert run("verify", store, "--channel", "alpha").code == 1
    assert run("verify", store, "--channel", "nobody").code == 2


def test_progress_for_programs(run, golden: Path) -> None:
    outcome = run("verify", golden / "basic" / "datastore", "--progress", "json")
    last = json.loads(outcome.err.splitlines()[-1])
    assert (last["progress"], last["done"], last["findings"]) == ("verify", True, 0)
    assert last["bytes"] > 1_000_000


@pytest.mark.parametrize("case", others_slow(SOME, SOME[::2]))
def test_forecast(run, golden_copy: Copy, case: str) -> None:
    store, expected = golden_copy(case), load_expected(case)
    before = tree(store)
    options = expected["options"]
    arguments: list[object] = ["--max-msgs", options["max_msgs"], "--max-bytes", options["max_bytes"]]
    outcome = run("forecast", store, "-o", "json", *arguments)
    result = outcome.json()
    assert (result["schema"], result["server_version"]) == (1, "0.23.2")
    for name, key in (("normal", "server_open"), ("truncate", "server_open_truncate")):
        if key in expected:
            assert result[name]["starts"] == expected[key]["started"], name
            assert result[name]["exit_code"] == (expected[key].get("exit_code") if not result[name]["starts"] else None)
        assert {"error", "log", "channels", "clients", "files_changed"} <= set(result[name])
    assert tree(store) == before
    table = run("forecast", store, *arguments)
    assert table.code == outcome.code
    assert ("normal start: starts" in table.out) == result["normal"]["starts"]


def test_forecast_exit_codes(run, golden: Path) -> None:
    for case, code in (
        ("basic", 0),
        ("dmg_garbage_clients", 1),  # does not start
        ("dmg_payload_flip_idx_intact", 1),  # delivery stalls
        ("dmg_server_missing", 1),  # starts as if it were empty
        ("dmg_zero_tail_dat_noidx", 1),  # is cut
        ("dmg_clients_missing", 1),  # deletes a durable queue member
        ("dmg_idx_missing_all", 0),  # indexes are rebuilt
    ):
        assert run("forecast", golden / case / "datastore").code == code, case


def test_forecast_of_another_version(run, golden: Path) -> None:
    store = golden / "dmg_server_missing" / "datastore"
    assert "as if the store were empty" in run("forecast", store).out
    newer = run("forecast", store, "--server-version", "0.25.6", "-o", "json").json()
    assert newer["normal"]["recovered"] is True
    assert newer["server_version"] == "0.25.6"
    assert run("forecast", store, "--server-version", "0.1").code == 2


def test_the_first_lines_say_what_a_start_destroys(run, golden_copy: Copy) -> None:
    store = golden_copy("dmg_server_missing")
    lines = run("forecast", store).out.splitlines()
    assert lines[0].endswith("start over as if the store were empty")
    assert lines[1].startswith("  destroys  alpha: sequences start over at 1; messages 1-40 on disk")
    assert lines[2].startswith("  destroys  beta.two: sequences start over at 1; messages 1-12 on disk")
    assert lines[3] == "As version 0.25.6 the server would start and deliver every message"
    assert lines[4].startswith("next: Do not start the server on this store (it would destroy data)")
    assert lines[5] == f"  stantools salvage {store} --out {store}.salvaged --cluster-id '{PLACEHOLDER}'"
    assert "server 0.25.6, normal start: starts" in lines
    both = run("forecast", store, "-o", "json").json()
    assert [each["how"] for each in both["normal"]["destroys"]] == ["anew", "anew"]
    (other,) = both["other_versions"]
    assert (other["server_version"], other["normal"]["destroys"]) == ("0.25.6", [])
    assert run("forecast", store, "--server-version", "0.23.2", "-o", "json").json()["other_versions"] == []


def test_the_first_lines_of_the_other_start(run, golden: Path) -> None:
    store = golden / "dmg_length_huge_noidx" / "datastore"
    lines = run("forecast", store).out.splitlines()
    assert lines[0].startswith("Started now, the server would exit with code 1")
    assert lines[1].startswith("With -file_truncate_bad_eof the server would start, and would cut")
    assert lines[2].endswith("3 intact records (sequences 38-40) lost")
    assert lines[3].startswith("next: Do not start the server on this store (the start would fail)")


def test_the_first_lines_of_a_healthy_store(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"
    lines = run("forecast", store).out.splitlines()
    assert lines[0] == "Started now, the server would start and deliver every message"
    assert lines[1] == "next: Nothing to repair; see what a move to JetStream would look like"
    assert lines[2].startswith(f"  stantools migrate {store} ")
    limited = run("forecast", golden / "slices_count" / "datastore", "--max-msgs", "5").out.splitlines()
    assert any(line.startswith("  destroys") and "removed by the limits" in line for line in limited[:5])
    assert any(line.startswith("next: Start the server with limits") for line in limited)


def test_forecast_knows_the_stores_own_cluster_id(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"
    assert run("forecast", store, "--cluster-id", "another").code == 1
    assert 'does not match recovered value of "test-cluster"' in run("forecast", store, "--cluster-id", "another").out


def test_forecast_for_another_user(run, golden_copy: Copy) -> None:
    store = golden_copy("basic")
    for path in (store, *store.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (store / "foo" / "msgs.1.dat").chmod(0o444)
    outcome = run("forecast", store, "--server-user", 54321)
    assert outcome.code == 1
    assert "permission denied" in outcome.out
    assert run("forecast", store, "--server-user", "no-such-user-here").code == 2


def test_salvage(run, golden_copy: Copy, tmp_path: Path) -> None:
    store, out = golden_copy("dmg_length_flip_noidx"), tmp_path / "new"
    before = tree(store)
    plan = run("salvage", store, "--dry-run", "-o", "json").json()
    assert (plan["written"], plan["out"], plan["check"]) == (False, None, None)
    assert not out.exists()
    outcome = run("salvage", store, "--out", out, "--force")
    assert outcome.code == 0
    assert "verify is clean and the server would start" in outcome.out
    assert tree(store) == before
    assert run("verify", out).code == 0
    assert run("forecast", out).code == 0
    again = run("salvage", store, "--out", out, "--force")
    assert again.code == 3
    assert "exists already" in again.err


def test_salvage_with_loss(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("dmg_payload_flip_noidx")
    assert run("salvage", store, "--dry-run").code == 1
    outcome = run("salvage", store, "--out", tmp_path / "a", "--force", "-o", "json")
    assert outcome.code == 5
    result = outcome.json()
    assert result["summary"]["lost"] == 1
    assert result["check"]["starts"] is True
    assert Path(result["manifest"]).is_file()
    filled = run("salvage", store, "--out", tmp_path / "b", "--fill-gaps", "--force", "-o", "json").json()
    assert [c["filled"] for c in filled["channels"] if c["name"] == "alpha"] == [[[25, 25]]]
    table = run("salvage", store, "--out", tmp_path / "c", "--force")
    assert re.search(r"^missing before: alpha: .*25", table.out, re.MULTILINE)
    assert "messages: 51 messages intact, 1 missing before\n" in table.out


def commands(text: str) -> list[str]:
    """The commands that a verb ends with."""
    return [line.strip() for line in text.splitlines() if line.startswith("  ") and " -dir " in line]


class Printed(Broker):
    """Our broker as a printed line starts it, on loopback and on a free port."""

    def __init__(self, folder: Path, line: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        super().__init__(folder, environment={"PATH": path})
        self.line = line

    def command(self) -> list[str]:
        return ["bash", "-c", f"exec env {self.line} -a 127.0.0.1 -p {self.port}"]


async def test_salvage_says_how_to_start_the_server(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed line, as it stands, starts our broker on the new store, and everything can be read there."""
    monkeypatch.delenv("NATS_STREAMING_ENCRYPTION_KEY", raising=False)
    key = tmp_path / "the key"
    key.write_text("s3cret")
    store, out = tmp_path / "it's a store", tmp_path / "a new one"
    sample = ("--name", "a", "--damage", "flipped-byte", "--encryption-key-file", key)
    assert run("sample", store, "--cluster-id", "orders", "--crc-poly", "castagnoli", *sample).code == 0
    outcome = run("salvage", store, "--out", out, "--encryption-key-file", key)
    assert outcome.code == 5, outcome.err
    original, ours = commands(outcome.out)
    words = f"-st FILE -dir '{out}' -cid orders -file_crc_poly 2197175160 -encrypt"
    assert original == f"NATS_STREAMING_ENCRYPTION_KEY=\"$(cat '{key}')\" nats-streaming-server {words}"
    assert ours == original.replace("nats-streaming-server", "stan-broker")
    kept = run("messages", out, "a", "-o", "ndjson", "--encryption-key-file", key).ndjson()
    assert len(kept) == 99
    with Printed(tmp_path / "run", ours) as broker:
        queue: asyncio.Queue[Message] = asyncio.Queue()
        async with await connect(broker.url, "orders", "reader") as client:
            await client.subscribe("a", queue.put, SubscriptionOptions(start=Start.first()))
            got = [await asyncio.wait_for(queue.get(), 60) for _ in kept]
        assert broker.stop() == 0
    assert [(each.sequence, each.data) for each in got] == [
        (each["seq"], base64.b64decode(each["data"])) for each in kept
    ]


def test_a_start_needs_only_what_is_not_the_default(run, golden_copy: Copy, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "new"
    whole = run("salvage", golden_copy("dmg_length_flip_noidx"), "--out", out)
    assert whole.code == 0, whole.out + whole.err
    assert commands(whole.out) == [f"{name} -st FILE -dir {out}" for name in ("nats-streaming-server", "stan-broker")]
    assert "--fill-gaps" not in whole.out
    sealed = golden_copy("encrypted_aes")
    monkeypatch.delenv("NATS_STREAMING_ENCRYPTION_KEY", raising=False)
    unknown = run("salvage", sealed, "--out", tmp_path / "a")
    assert commands(unknown.out) == []  # a server that is started the wrong way does harm
    question = f"stantools doctor {tmp_path / 'a'} --encryption-key-env NATS_STREAMING_ENCRYPTION_KEY"
    assert question in unknown.out and "find out whether payloads are encrypted" in unknown.out
    answer = run(*shlex.split(question)[1:], env={"NATS_STREAMING_ENCRYPTION_KEY": "a simple test key"})
    assert "are encrypted, and the key opens them" in answer.out.splitlines()[1]
    wrong = run(*shlex.split(question)[1:], env={"NATS_STREAMING_ENCRYPTION_KEY": "another"})
    assert "the key does not open them" in wrong.out.splitlines()[1]
    monkeypatch.setenv("OURS", "a simple test key")
    named = run("salvage", sealed, "--out", tmp_path / "b", "--encryption-key-env", "OURS")
    assert commands(named.out)[1].startswith('NATS_STREAMING_ENCRYPTION_KEY="$OURS" stan-broker ')
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "a simple test key")
    known = run("salvage", sealed, "--out", tmp_path / "c")
    assert commands(known.out)[1] == f"stan-broker -st FILE -dir {tmp_path / 'c'} -encrypt"


def test_limits_that_would_remove_messages_are_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    write_sample(store, SampleOptions(messages=40))
    monkeypatch.setattr(check, "DEFAULT_MAX_MSGS", 40)
    assert check.check_start(open_datastore(store, Crc(IEEE)), "test-cluster").options == ()
    monkeypatch.setattr(check, "DEFAULT_MAX_MSGS", 39)
    assert check.check_start(open_datastore(store, Crc(IEEE)), "test-cluster").options == ("-mm", "0")
    monkeypatch.setattr(check, "DEFAULT_MAX_BYTES", 4000)
    assert check.check_start(open_datastore(store, Crc(IEEE)), "test-cluster").options == ("-mm", "0", "-mb", "0")


def test_gaps_can_be_filled_afterwards(run, golden_copy: Copy, tmp_path: Path) -> None:
    out = tmp_path / "new"
    outcome = run("salvage", golden_copy("dmg_payload_flip_noidx"), "--out", out)
    line = outcome.out.splitlines()[-1].strip()
    assert line == f"stantools salvage {out} --out {out}.filled --fill-gaps"
    assert "1 sequence is missing in 1 channel; servers skip gaps" in outcome.out
    again = run(*shlex.split(line)[1:], "-o", "json")
    assert again.code == 0
    assert again.json()["check"]["start_options"] == []
    filled = run("forecast", f"{out}.filled", "-o", "json").json()["normal"]["channels"]["alpha"]
    assert filled["delivered_from_start"] == [[1, 40]]


def test_salvage_refuses(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("basic")
    assert run("salvage", store).code == 2
    assert run("salvage", store, "--out", store / "inside", "--force").code == 4
    assert run("salvage", store, "--out", tmp_path / "no" / "such" / "place", "--force").code == 3
    lost = golden_copy("dmg_server_missing")
    outcome = run("salvage", lost, "--out", tmp_path / "new", "--force")
    if outcome.code == 4:
        assert "--cluster-id" in outcome.err
        outcome = run("salvage", lost, "--out", tmp_path / "new", "--force", "--cluster-id", "test-cluster")
    assert outcome.code in (0, 5)


def test_sample(run, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("sample", one, "--seed", 7).code == 0
    assert run("sample", two, "--seed", 7, "-o", "json").json()["messages"] == 300
    assert tree(one) == tree(two)
    assert run("verify", one).code == 0
    assert run("sample", one).code == 3
    assert run("sample").code == 2
    assert run("sample", tmp_path / "x", "--damage", "nonsense").code == 2
    assert run("sample", tmp_path / "x", "--crc-poly", "auto").code == 2
    assert run("sample", tmp_path / "x", "--name", "a..b").code == 2


def test_sample_options(run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    outcome = run(
        "sample", store, "--name", "a", "--name", "b.c", "--messages", 10, "--size", 64, "--slice-msgs", 4,
        "--crc-poly", "0x12345678", "--gaps", "--no-subscriptions", "--encryption-key-env", "K", "--cipher", "chacha",
        env={"K": "secret"},
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    info = run("info", store, "-o", "json").json()
    assert [channel["name"] for channel in info["channels"]] == ["a", "b.c"]
    assert info["crc_polynomial"] == 0x12345678
    assert info["clients"] == []
    assert info["channels"][0]["encrypted"]
    assert len(info["channels"][0]["slices"]) == 3
    assert info["channels"][1]["first_seq"] == 101
    shown = run("messages", store, "a", "-o", "ndjson", "--encryption-key-env", "K", env={"K": "secret"})
    assert (shown.code, len(shown.ndjson())) == (0, 10)


def test_list_of_damages(run) -> None:
    assert all(name in run("sample", "--list-damages").out for name in DAMAGES)
    assert {each["name"] for each in run("sample", "--list-damages", "-o", "json").json()["damages"]} == set(DAMAGES)


@pytest.mark.parametrize("damage", others_slow(DAMAGES, list(DAMAGES)[::3]))
def test_every_damage_is_found_and_can_be_salvaged(run, tmp_path: Path, damage: str) -> None:
    store, out = tmp_path / "store", tmp_path / "new"
    assert run("sample", store, "--damage", damage, "--messages", 40).code == 0
    assert json.loads(run("verify", store, "-o", "json").out)["findings"], damage
    outcome = run("salvage", store, "--out", out, "--force", "--cluster-id", "test-cluster")
    assert outcome.code in (0, 5), outcome.err
    assert run("verify", out).code == 0
    assert "normal start: starts" in run("forecast", out).out


def test_a_store_is_watched_for_two_seconds(golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("dmg_last_slice_cut_payload")
    (store / "clients.dat").touch()
    started = time.monotonic()
    result = CliRunner().invoke(cli, ["salvage", str(store), "--out", str(tmp_path / "new")])  # not `run`: as it is
    assert result.exit_code in (0, 5), result.stderr
    assert time.monotonic() - started >= QUIET_SECONDS


def test_a_store_in_use_is_left_alone(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("dmg_last_slice_cut_payload")
    script = f"f = open({str(store / 'clients.dat')!r}, 'ab'); print('open', flush=True); input()"
    server = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout and server.stdout.readline() == "open\n"
        before = tree(store)
        for arguments in (
            ("salvage", store, "--out", tmp_path / "new"),
            ("truncate-bad-eof", store, "--yes"),
        ):
            outcome = run(*arguments)
            assert outcome.code == 4, outcome.err
            assert "is in use" in outcome.err
        assert tree(store) == before
        assert not (tmp_path / "new").exists()
        assert run("verify", store).code == 1
        forced = run("salvage", store, "--out", tmp_path / "new", "--force")
        assert forced.code in (0, 5)
        assert "may look damaged" in forced.err
    finally:
        server.communicate("\n", timeout=20)
