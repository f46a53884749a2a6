"""Odd things in a store and odd ways to call: a clear answer and a documented exit code."""

from __future__ import annotations

import functools
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.escaping import escape, fill_in, shell_word
from tests.calls import before_call

Copy = Callable[[str], Path]


#: printable and not, in UTF-8 and not: quotes, escapes, controls of one byte and of two, separators, bytes
ODD_NAMES = (
    *("plain", "a b", "it's", "$HOME", "`id`", "\\", "a\\nb", "-v", "ü", "\U0001f600"),
    *(
        "\x1b[31m'; id #",
        "\n'",
        "\t\\",
        "\x7f1",
        "\x85f",
        "\xad",
        "\u2028a",
        "\u202e",
        "\U000e0001",
        "\udc85'",
        "\udcffa",
    ),
)


def test_any_name_is_one_word_of_a_shell() -> None:
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("needs bash")
    words = " ".join(map(shell_word, ODD_NAMES))
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([bash, "-c", f"printf '%s\\0' {words}"], env=environment, capture_output=True, check=True)
    assert [os.fsdecode(each) for each in done.stdout.split(b"\0")[:-1]] == [*ODD_NAMES]


def test_no_two_names_are_printed_alike() -> None:
    assert len({escape(each) for each in ODD_NAMES}) == len(ODD_NAMES)
    assert escape("\x85") != escape("\udc85") and all(escape(each).isprintable() for each in ODD_NAMES)


def sample(run, path: Path, *options: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    assert run("sample", path, "--channels", 1, "--messages", 20, *options).code == 0
    return path


def test_salvage_of_a_store_with_its_own_cluster_id(run, tmp_path: Path) -> None:
    store = sample(run, tmp_path / "store", "--cluster-id", "production")
    outcome = run("salvage", store, "--out", tmp_path / "new")
    assert outcome.code == 0, outcome.err
    assert "verify is clean and the server would start" in outcome.out
    (store / "server.dat").unlink()
    outcome = run("salvage", store, "--out", tmp_path / "other", "--cluster-id", "another", "-o", "json")
    check = {"clean": True, "starts": True, "error": None, "findings": [], "start_options": ["-cid", "another"]}
    check["may_be_encrypted"] = []
    assert outcome.json()["check"] == check


def test_links_in_circles(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("damage_base")
    (store / "circle").symlink_to("circle")
    slice_file = store / "alpha" / "msgs.1.dat"
    slice_file.unlink()
    slice_file.symlink_to(slice_file.name)
    verdict = run("verify", store, "-o", "json")
    assert verdict.code == 1
    assert ("file-unreadable", "alpha/msgs.1.dat") in {(f["code"], f["file"]) for f in verdict.json()["findings"]}
    for verb in ("info", "forecast", "messages"):
        assert run(verb, store, *(["alpha"] if verb == "messages" else [])).code == 1
    assert run("salvage", store, "--out", tmp_path / "new").code == 5


def test_output_through_a_link_to_itself(run, golden_copy: Copy, tmp_path: Path) -> None:
    store = golden_copy("basic")
    (tmp_path / "loop").symlink_to("loop")
    for verb, option, name in (
        ("salvage", "--out", "new"),
        ("compact", "--out", "new"),
        ("export", "--to", "new"),
        ("export", "--to", "new.sqlite"),
        ("report", "--html", "new.html"),
        ("stats", "--to", "new"),
    ):
        for place in (tmp_path / "loop" / name, tmp_path / "loop"):
            if verb == "report" and place.name == "loop":
                continue  # a link is replaced by a page
            outcome = run(verb, store, option, place)
            assert outcome.code in (2, 3, 4) and "loop" in outcome.err, (verb, place, outcome)
    assert run("sample", tmp_path / "loop" / "new").code == 3


def changed(store: Path, chance: random.Random) -> None:
    """What running servers do: a file goes, grows, is cut; a folder goes."""
    paths = sorted(store.rglob("*"))
    path = chance.choice(paths)
    if path.is_dir():
        shutil.rmtree(path)
    elif (kind := chance.randrange(3)) == 0:
        path.unlink()
    elif kind == 1:
        os.truncate(path, chance.randrange(path.stat().st_size + 1))
    else:
        with path.open("ab") as file:
            file.write(chance.randbytes(chance.randrange(1, 60)))


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["info", "verify", "doctor", "forecast", "salvage", "export", "report"])
@pytest.mark.parametrize("kind", ["basic", "ok_blocks15"])
def test_a_store_may_change_between_any_two_looks(
    run, golden: Path, golden_jetstream: Path, tmp_path: Path, kind: str, verb: str, rounds: int
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    source = golden_jetstream / kind / "store" if kind.startswith("ok_") else golden / kind / "datastore"
    more = {"salvage": ["--out", out], "export": ["--to", out], "report": ["--html", out]}.get(verb, [])
    shutil.copytree(source, store)
    with before_call(sys.maxsize, lambda: None) as calls:
        assert run(verb, store, *more).code in (0, 1)
    for seed in range(rounds):
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        shutil.rmtree(store)
        shutil.copytree(source, store)
        chance = random.Random(f"{kind} {verb} {seed}")
        with before_call(chance.randrange(len(calls)), functools.partial(changed, store, chance)):
            outcome = run(verb, store, *more)
        assert outcome.code in (0, 1, 3, 4, 5), (seed, outcome)
        if outcome.code in (3, 4):
            assert f"stantools: error: {store}" in outcome.err and "\n  -> " in outcome.err, (seed, outcome)
            assert verb not in ("salvage", "export") or not out.exists(), (seed, outcome)


@pytest.mark.parametrize("name", ["server.dat", "clients.dat", "alpha/subs.dat"])
def test_a_directory_in_place_of_a_file(run, golden_copy: Copy, name: str) -> None:
    store = golden_copy("damage_base")
    (store / name).unlink()
    (store / name).mkdir()
    start = run("forecast", store, "-o", "json").json()["normal"]
    assert not start["starts"]
    assert start["error"].endswith(f"open {store}/{name}: is a directory")


def test_line_breaks_in_names_stay_in_their_line(run, golden_copy: Copy) -> None:
    store = golden_copy("damage_base")
    (store / "alpha").rename(store / "line\nlost: everything")
    outcome = run("salvage", store, "--dry-run")
    assert "line\\nlost: everything" in outcome.out
    assert not any(line.startswith("lost: everything") for line in outcome.out.splitlines())
    assert "went to the right channel, 'alpha'" in outcome.out


def test_names_that_differ_by_case_are_no_damage(run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run("sample", store, "--name", "orders", "--name", "Orders").code == 0
    verdict = run("verify", store)
    assert verdict.code == 0
    assert "case-collision" in verdict.out
    assert run("salvage", store, "--out", tmp_path / "new").code == 0


def test_what_must_not_be_read_is_not_a_wrong_command_line(run, tmp_path: Path, monkeypatch) -> None:
    store = sample(run, tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_, **__: False)
        assert run("info", store).code == 0  # whoever may not read it is told so when it is opened
    missing = run("records", tmp_path / "nowhere")
    assert missing.code == 3
    assert "no such file" in missing.err


def test_a_directory_is_no_file(run, tmp_path: Path) -> None:
    store = sample(run, tmp_path / "a store")
    for words in ((), ("--kind", "messages")):
        outcome = run("records", store, *words)
        assert outcome.code == 3
        assert f"{store}: is a directory" in outcome.err and f"stantools doctor '{store}'" in outcome.err


@pytest.mark.parametrize("verb", ["salvage", "compact"])
def test_where_a_new_store_is(run, tmp_path: Path, verb: str, monkeypatch) -> None:
    """`missing/..` names nothing until it is resolved; what is printed is where the store lies."""
    store = sample(run, tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    outcome = run(verb, store, "--out", "missing/../new")
    assert outcome.code == 0
    assert f"{tmp_path}/new" in outcome.out
    assert (tmp_path / "new" / "server.dat").exists() and not (tmp_path / "missing").exists()
    assert run(verb, store, "--out", "plain").out.count(str(tmp_path)) == 0


def test_a_closed_output(run, tmp_path: Path) -> None:
    store = sample(run, tmp_path / "store")
    command = f"{sys.executable} -m stantools info {store}"
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_repair_does_not_lead_to_an_empty_start(run, tmp_path: Path) -> None:
    store = sample(run, tmp_path / "store", "--damage", "lost-server")
    outcome = run("truncate-bad-eof", store, "--yes")
    assert outcome.code == 4
    assert "of 1 channels it would recover 0" in outcome.err
    assert not (store / "server.dat").exists()
    insisted = run("truncate-bad-eof", store, "--yes", "--force")
    assert insisted.code == 1
    assert "do not start it" in insisted.out


@pytest.mark.parametrize("name", ["-old", "--help"])
def test_names_like_options(run, tmp_path: Path, monkeypatch, name: str) -> None:
    """Each command that is printed about such a store works as it is."""
    monkeypatch.chdir(tmp_path)
    assert run("sample", f"./{name}", "--channels", 1, "--name", "-x", "--damage", "cut-payload").code == 0
    command = run("doctor", f"./{name}").out.splitlines()[-1]
    assert command.startswith("  stantools salvage ")
    rescued = run(*shlex.split(command)[1:])
    assert rescued.code in (0, 5), rescued.err
    started = next(line for line in rescued.out.splitlines() if line.startswith("  stan-broker "))
    assert Path(started.split()[-1]).is_dir() and not started.split()[-1].startswith("-")
    planned = run("migrate", "plan", f"./{name}", "--out", "backups")
    assert planned.code == 1, planned.err  # with loss, which the plan names
    assert [each.name for each in tmp_path.glob("*.yaml")] == [f"{tmp_path.name}-{name}.migration.yaml"]
    filled = fill_in("see `stantools messages STORE CHANNEL --archived`; `--channel CHANNEL`", {"CHANNEL": name})
    assert filled == f"see `stantools messages STORE --archived -- {name}`; `--channel CHANNEL`"
    assert fill_in("`stantools verify STORE --channel CHANNEL`", {"CHANNEL": "-x"}).endswith("--channel -x`")


def test_a_plan_is_no_hidden_file(run, tmp_path: Path, monkeypatch) -> None:
    store = sample(run, tmp_path / "shop" / ".store")
    (tmp_path / "shop" / "work").mkdir()
    for folder, named in (("shop/work", "../.store"), ("shop/.store", "."), ("", store)):
        monkeypatch.chdir(tmp_path / folder)
        assert run("migrate", "plan", named, "--out", tmp_path / "backups").code == 0
        assert [each.name for each in Path().glob("*.yaml")] == ["shop-.store.migration.yaml"]


def test_any_path_that_is_no_store(run, tmp_path: Path, monkeypatch) -> None:
    """It is named, and nothing ends with a traceback."""
    store = sample(run, tmp_path / "srv" / "datastore")
    monkeypatch.chdir(tmp_path)
    for odd in ("/", "/proc", "/dev/pts", "/dev/null", store / "server.dat", "nowhere"):
        assert run("doctor", odd).code == 3
        assert run(odd).code in (2, 3)
    (tmp_path / "x.tgz").write_bytes(b"\x1f\x8b" + bytes(20))
    assert "is an archive" in run("x.tgz").err


def test_without_a_store_the_error_says_what_the_current_directory_is(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("doctor")
    assert outcome.code == 2
    assert "no STORE was given, and the current directory is an empty directory, not a store" in outcome.err
    for name in ("a", "b c"):
        sample(run, tmp_path / name)
    for verb in ("doctor", "verify", "messages", "salvage"):
        outcome = run(verb)
        assert outcome.code == 2
        assert "no STORE was given, and the current directory holds several file stores (2: a, b c)" in outcome.err
        assert f"name one: `stantools {verb} a`; see: stantools {verb} --help" in outcome.err
    monkeypatch.chdir(tmp_path / "b c")
    assert run("doctor").code == 0


def test_the_current_directory_may_be_one_of_jetstream(run, golden_jetstream: Path, monkeypatch) -> None:
    monkeypatch.chdir(golden_jetstream / "ok_basic15/store")
    outcome = run("doctor")
    assert outcome.code == 0
    assert "no STORE was given: using the current directory" in outcome.err


@pytest.mark.parametrize("words", [("doctor", ""), ("salvage", "store", "--out", ""), ("report", "", "--html", "x")])
def test_an_empty_path_is_not_the_current_directory(run, tmp_path: Path, monkeypatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(sample(run, tmp_path / "store"))
    outcome = run(*words)
    assert outcome.code == 2
    assert "the path is empty" in outcome.err


def test_an_option_without_its_value_has_a_remedy(run) -> None:
    outcome = run("salvage", "store", "--out")
    assert outcome.code == 2
    assert outcome.err.endswith("  -> see: stantools salvage --help\n")


@pytest.mark.parametrize(
    "words",
    [("migrate", "store", "--out", "backups"), ("compact", "store", "--in-place"), ("repair", "store", "--force")],
)
def test_a_declined_question_changes_nothing_and_is_no_success(
    run, tmp_path: Path, monkeypatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    sample(run, tmp_path / "store", *(["--damage", "cut-subs"] if words[0] == "repair" else []))
    monkeypatch.setattr("stantools.cli.console.confirm", lambda *_, **__: False)
    outcome = run(*words)
    assert outcome.code == 4, outcome
    assert "nothing was changed" in outcome.err
    assert not (tmp_path / "backups").exists()


def test_a_plan_of_a_second_target_needs_a_file_of_its_own(run, tmp_path: Path, monkeypatch) -> None:
    """The first plan and its journal stay, and the printed command would be refused."""
    monkeypatch.chdir(tmp_path)
    sample(run, tmp_path / "store")
    assert run("migrate", "store", "--out", "one", "--plan", "p.yaml", "--yes").code == 0
    before = Path("p.yaml").read_bytes()
    outcome = run("migrate", "plan", "store", "--out", "two", "--plan", "p.yaml")
    assert outcome.code == 4
    assert "p.yaml.journal: belongs to another migration" in outcome.err
    assert "--plan" in outcome.err
    assert Path("p.yaml").read_bytes() == before
    assert run("migrate", "plan", "store", "--out", "one", "--plan", "p.yaml").code == 0


def test_a_store_in_place_of_a_plan(run, tmp_path: Path) -> None:
    store = sample(run, tmp_path / "store")
    for name, reason in ((store, "is a directory, expected a migration plan"), (tmp_path / "no", "no such file")):
        outcome = run("migrate", "verify", name)
        assert outcome.code == 3
        assert f"{name}: {reason}" in outcome.err
        assert "name the file that `stantools migrate plan STORE` wrote" in outcome.err
