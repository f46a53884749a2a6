"""`doctor`, the store that is meant where none is named, and commands that can be pasted."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stantools.cli.click_options import StoreArgument
from stantools.cli.main import cli
from stantools.cli.verbs import summaries
from stantools.errors import ExitCode, StantoolsError
from stantools.inspection.advice import PLACEHOLDER, Health
from tests.conftest import cases_by_kind, load_expected


def make(run, path: Path, *options: str) -> Path:
    assert run("sample", path, "--channels", "2", *options).code == 0
    return path


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden_stores(run, golden: Path, golden_copy, case: str) -> None:
    """Healthy is what a real server started without loss; in danger where it destroyed something."""
    expected = load_expected(case)
    store = golden_copy(case) if expected["setup"] else golden / case / "datastore"
    if "opened_as" in expected:
        pytest.skip("the server was another user")
    limits = ["--max-msgs", "0", "--max-bytes", "0"]
    outcome = run("doctor", store, *limits)
    verify = run("verify", store)
    said = outcome.out.splitlines()
    state = next(each for each in Health if said[0].startswith(f"{store}: {each.value}: "))
    assert outcome.code == (ExitCode.CLEAN if state is Health.HEALTHY else ExitCode.FINDINGS)
    if verify.code:
        assert state is not Health.HEALTHY
    advice = said.index(next(line for line in said if line.startswith("next: ")))
    command = [line for line in said[advice + 1 :] if line.startswith("  stantools ")]
    assert len(command) <= 1
    for each in command:
        words = shlex.split(each)
        assert str(store) in words
        assert not any(word in ("STORE", "NEW", "CHANNEL") for word in words)
        if words[1] == "salvage":
            planned = run(*words[1:], "--dry-run", "--force")
            if PLACEHOLDER in words:
                assert planned.code == ExitCode.USAGE and "is not a cluster id" in planned.err
                words[words.index(PLACEHOLDER)] = "some-cluster"
                planned = run(*words[1:], "--dry-run", "--force")
            assert planned.code in (ExitCode.CLEAN, ExitCode.FINDINGS), planned.err
    if not expected["server_open"]["started"] and "-" not in "".join(expected["open_args"]):
        assert state in (Health.DAMAGED, Health.IN_DANGER)


def test_what_a_start_would_destroy_comes_first(run, tmp_path: Path) -> None:
    store = make(run, tmp_path / "a store", "--damage", "lost-server")
    outcome = run("doctor", store)
    assert outcome.code == ExitCode.FINDINGS
    first = outcome.out.splitlines()[0]
    assert first.startswith(f"{store}: in danger: do not start the server on it: a start would destroy data")
    assert "destroys  orders: sequences start over at 1" in outcome.out
    assert "As version 0.25.6 the server would start" in outcome.out
    salvage = f"  stantools salvage '{store}' --out '{store}.salvaged' --cluster-id '{PLACEHOLDER}'"
    assert outcome.out.splitlines()[-1] == salvage
    command = shlex.split(outcome.out.splitlines()[-1])[1:]
    assert run(*command).code == ExitCode.USAGE
    done = run(*command[:-1], "test-cluster")
    assert done.code == 0
    again = run("doctor", store)
    assert again.out.splitlines()[-1] == salvage.replace(".salvaged'", ".salvaged-2'")
    healthy = run("doctor", f"{store}.salvaged")
    assert healthy.code == 0
    assert healthy.out.startswith(f"{store}.salvaged: healthy: no message of 200 is missing; a start is harmless\n")


@pytest.mark.parametrize("left", ["an identity", "nothing"])
def test_salvage_of_a_damaged_server_dat(run, tmp_path: Path, left: str) -> None:
    """The cluster id is asked for only where nothing tells it, and the printed command works in any case."""
    store = make(run, tmp_path / "store", "--cluster-id", "orders")
    identity = store / "server.dat"
    damaged = bytearray(identity.read_bytes())
    damaged[5 if left == "an identity" else slice(12, None)] = 0xFF if left == "an identity" else b"\xff" * 40
    identity.write_bytes(damaged)
    for verb in ("doctor", "forecast"):
        said = run(verb, store).out.splitlines()
        line = next(each for each in said if each.startswith("  stantools salvage "))
        assert line.endswith(f" --cluster-id '{PLACEHOLDER}'") == (left == "nothing")
        assert ("cluster id that clients connect with" in " ".join(said)) == (left == "nothing")
        done = run(*(word.replace(PLACEHOLDER, "orders") for word in shlex.split(line)[1:]))
        assert done.code in (ExitCode.CLEAN, ExitCode.LOSS), done.err
        shutil.rmtree(f"{store}.salvaged")


def test_what_is_lost_and_what_is_not(run, tmp_path: Path) -> None:
    torn = make(run, tmp_path / "torn", "--damage", "flipped-byte")
    outcome = run("doctor", torn)
    assert re.search(r"damaged: 1 of 200 messages is missing \(\S+ \d+\); ", outcome.out.splitlines()[0])
    assert re.search(
        r"\nmessages: 199 messages intact \(\d+ readable now, \d+ recoverable\), 1 missing before\n", outcome.out
    )
    kept = make(run, tmp_path / "kept", "--damage", "flipped-length")
    assert "damaged: no message of 200 is missing; " in run("doctor", kept).out.splitlines()[0]
    gone = make(run, tmp_path / "gone", "--damage", "lost-slice")
    report = run("doctor", gone, "-o", "json").json()
    assert sum(b - a + 1 for ranges in report["lost"].values() for a, b in ranges) > 1
    assert (report["schema"], report["clean"]) == (1, False)
    assert report["next"]["command"][:2] == ["stantools", "salvage"]


def test_a_store_in_use_is_said(run, tmp_path: Path) -> None:
    store = make(run, tmp_path / "store")
    holding = "import sys; file = open(sys.argv[1], 'r+b'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holding, store / "orders" / "subs.dat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"open\n"
        outcome = run("doctor", store)
        server.communicate()
    assert "stop the server" in outcome.out
    assert "stantools salvage" not in outcome.out


def test_the_verb_may_be_left_out(run, tmp_path: Path, monkeypatch) -> None:
    store = make(run, tmp_path / "datastore", "--damage", "lost-clients")
    assert run(store).out == run("doctor", store).out
    assert run(store, "-o", "json").json() == run("doctor", store, "-o", "json").json()
    missing = run(tmp_path / "nowhere")
    assert missing.code == ExitCode.UNREACHABLE and "no such directory" in missing.err
    monkeypatch.chdir(tmp_path)
    assert run("datastore").code == ExitCode.FINDINGS
    assert run("datastor").code == ExitCode.USAGE


def with_a_store() -> list[str]:
    """The verbs that are given a store."""
    names = []
    for name in summaries():
        command = cli.get_command(cli.make_context("stantools", [name], resilient_parsing=True), name)
        assert command is not None
        if any(isinstance(each, StoreArgument) for each in command.params):
            names.append(name)
    return names


def test_every_verb_with_a_store_takes_the_usual_one_and_a_key() -> None:
    names = with_a_store()
    assert {"info", "verify", "forecast", "doctor", "salvage", "truncate-bad-eof", "compact", "diff"} <= set(names)
    for name in names:
        command = cli.get_command(cli.make_context("stantools", [name], resilient_parsing=True), name)
        options = {option for each in command.params for option in each.opts}
        assert {"--encryption-key-env", "--encryption-key-file"} <= options, name


def test_the_usual_store(run, tmp_path: Path, monkeypatch) -> None:
    store = make(run, tmp_path / "datastore")
    other = make(run, tmp_path / "other", "--name", "billing")
    monkeypatch.chdir(tmp_path)
    here = run("info")
    assert here.code == 0
    assert here.err == "stantools: no STORE was given: using ./datastore\n"
    assert here.out == run("info", "datastore").out
    assert run("messages", "orders", "--tail", "1").out == run("messages", store, "orders", "--tail", "1").out
    assert run("diff", "other").err.startswith("stantools: no STORE was given: using ./datastore\n")
    assert run("truncate-bad-eof", "--dry-run").err.startswith("stantools: no STORE was given: using ./datastore\n")
    assert run("migrate", "--to", "jetstream", "--out", tmp_path / "b", "--dry-run").code == 0
    assert run("export", "--to", "-").out == run("export", store, "--to", "-").out
    named = run("verify", env={"STANTOOLS_STORE": str(other)})
    assert "STANTOOLS_STORE" in named.err and "billing" in named.out
    monkeypatch.chdir(store)
    inside = run("forecast")
    assert inside.code == 0
    assert inside.err == f"stantools: no STORE was given: using the current directory, {store}\n"
    assert run("doctor").out.rstrip().endswith(f"--out {store}.backups --dry-run")


def test_no_store_to_be_taken(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["info"], ["messages", "orders"], ["export", "--to", "-"], ["diff", "x"]):
        outcome = run(*words)
        assert outcome.code == ExitCode.USAGE, words
        one = len(words) == 2  # it may be STORE
        assert ("Missing argument" if one else "no STORE was given, and the current directory is") in outcome.err


def test_completion_takes_no_store(run, tmp_path: Path, monkeypatch) -> None:
    make(run, tmp_path / "datastore")
    monkeypatch.chdir(tmp_path)
    outcome = run(env={"_STANTOOLS_COMPLETE": "bash_complete", "COMP_WORDS": "stantools info -", "COMP_CWORD": "2"})
    assert "no STORE" not in outcome.err


def test_remedies_can_be_pasted(run, tmp_path: Path) -> None:
    """Whatever is recommended in backticks runs as it stands, and finds what it names."""
    store = make(run, tmp_path / "it's a store", "--damage", "cut-subs", "--damage", "leftovers")
    out = run("verify", store).out
    commands = re.findall(r"`(stantools [^`]*)`", out)
    assert len(commands) >= 3
    for command in commands:
        verb, *words = shlex.split(command)[1:]
        assert str(store) in words or verb == "records", command
        assert run(verb, *words).code in (0, 1, 4 if "--dry-run" in words else 0, 5), command
        shutil.rmtree(f"{store}.salvaged", ignore_errors=True)


def test_hostile_names_are_quoted(run, tmp_path: Path) -> None:
    store = make(run, tmp_path / "a\x1b[31m;b", "--damage", "lost-server")
    outcome = run("doctor", store)
    assert "\x1b" not in outcome.out + outcome.err
    word = outcome.out.splitlines()[-1].split(" ")[4]
    assert word == f"$'{tmp_path}/a\\x1b[31m;b'"
    if bash := shutil.which("bash"):
        assert subprocess.run([bash, "-c", f"test -d {word}"], check=False).returncode == 0


def test_migrate_without_a_server_names_the_ways_on(run, tmp_path: Path, monkeypatch) -> None:
    from stantools.nats import connect_options

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setattr(connect_options, "DEFAULT_SERVER", f"nats://127.0.0.1:{nobody.getsockname()[1]}")
        store = make(run, tmp_path / "store")
        environment = {"NATS_URL": "", "XDG_CONFIG_HOME": str(tmp_path)}
        outcome = run("migrate", store, "--plan", tmp_path / "plan", "--yes", env=environment)
        assert outcome.code == ExitCode.UNREACHABLE
        assert "nothing is listening there" in outcome.err
        assert "--server embedded" in outcome.err and "--out DIR" in outcome.err
        named = run("migrate", store, "--server", connect_options.DEFAULT_SERVER, "--plan", tmp_path / "plan", "--yes")
        assert named.code == ExitCode.UNREACHABLE and "--out DIR" not in named.err


@pytest.mark.parametrize("words", [(), ("migrate",), ("pipeline",)])
def test_nothing_but_a_group_explains_itself(run, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == run(*words, "--help").out


def test_a_start_that_cannot_be_predicted_is_told(run, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is useful without it, for people and for programs; forecast itself fails."""

    def fails(*_args: object, **_options: object) -> None:
        raise StantoolsError("no memory for it", "free some")

    monkeypatch.setattr("stantools.inspection.forecast.forecast_versions", fails)
    store = golden / "basic" / "datastore"
    for options in ([], ["-o", "json"]):
        outcome = run("doctor", store, *options)
        assert outcome.code == ExitCode.FINDINGS
        assert "warning: the server's start cannot be predicted: no memory for it\n  -> free some" in outcome.err
    assert outcome.json()["starts"] == [] and outcome.json()["state"] == Health.DAMAGED
    assert run("forecast", store).code == ExitCode.UNREACHABLE


def test_lost_durables_are_a_loss_in_every_verb(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("sample", "store", "--channels", 2, "--damage", "lost-subs")
    doctor = run("doctor", "store")
    assert doctor.code == 1
    verdict, *_ = doctor.out.splitlines()
    assert "harmless" not in verdict
    assert "knows no durables of orders: they are lost" in verdict
    assert "first look for orders/subs.dat in backups and copies" in doctor.out
    salvage = run("salvage", "store", "--out", "new")
    assert salvage.code == 5
    assert "missing before: orders/subs.dat: the file is not there" in salvage.out
    migrate = run("migrate", "store", "--out", "backups", "--yes")
    assert migrate.code == 4
    assert "--accept-loss" in migrate.err
    assert run("doctor", "new").code == 0


def test_verify_counts_the_bytes_of_the_messages_that_it_counts(run, tmp_path: Path, monkeypatch) -> None:
    """A message whose record header is damaged is kept by a salvage, and has its size before as after."""
    monkeypatch.chdir(tmp_path)
    run("sample", "store", "--channels", 1, "--damage", "flipped-length")
    assert run("salvage", "store", "--out", "new").code == 0
    rows = [
        next(line.split()[:3] for line in run("verify", each).out.splitlines() if line.startswith("orders"))
        for each in ("store", "new")
    ]
    assert rows[0] == rows[1]
