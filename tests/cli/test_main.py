"""The program around the verbs: help, lazy imports, errors, exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from stantools.cli import console
from stantools.cli.main import Program, cli
from stantools.cli.verbs import QUESTIONS, module_of, summaries
from stantools.errors import ExitCode, RefusedError, StoreUnreadableError, UsageError
from stantools.store.sample import write_sample

HEAVY = ("numpy", "google.protobuf", "cryptography", "crcmod", "stantools.format", "stantools.store")


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def imported_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    return set(python("-c", script).stderr.split())


def test_help_imports_nothing_heavy() -> None:
    modules = imported_by("from stantools.cli.main import cli\ntry:\n  cli.main(['--help'])\nexcept SystemExit: pass")
    assert "stantools.cli.verbs" in modules
    assert not [name for name in HEAVY if name in modules]
    assert not [name for name in modules if name.startswith("stantools.cli.") and name.split(".")[2] in summaries()]


@pytest.mark.parametrize(
    "names", [[each for each in summaries() if each != "broker"], ["broker"]], ids=["verbs", "broker"]
)
def test_help_of_a_verb_imports_nothing_heavy(names: list[str]) -> None:
    done = python(
        "-c",
        "import sys\nfrom stantools.cli.main import cli\n"
        f"for name in {names!r}:\n"
        "  try: cli.main([name, '--help'])\n"
        "  except SystemExit: pass\n"
        f"  print(name, *(each for each in {HEAVY!r} if each in sys.modules), file=sys.stderr)",
    )
    # The broker's own help needs the defaults of its limits, which are in light modules of these two packages.
    light = {"stantools.format", "stantools.store"} if names == ["broker"] else set()
    found = {name: heavy for name, *heavy in map(str.split, done.stderr.splitlines())}
    assert list(found) == names
    assert not {name: heavy for name, heavy in found.items() if {*heavy} - light}


@pytest.mark.parametrize("name", ["info", "verify", "subs", "clients"])
def test_a_small_store_is_answered_with_what_the_answer_needs(name: str, tmp_path: Path) -> None:
    store = write_sample(tmp_path / "store").path
    modules = imported_by(
        f"from stantools.cli.main import cli\ntry:\n  cli.main(['{name}', {str(store)!r}])\nexcept SystemExit: pass"
    )
    assert "stantools.store.directory" in modules
    unneeded = ("stantools.format.bbolt", "stantools.format.raftlog", "stantools.store.raft")
    unneeded += ("concurrent.futures", "cryptography", "hashlib", "crcmod", "numpy")
    unneeded += ("asyncio", "ssl", "stantools.inspection.advice", "stantools.inspection.forecast")
    assert not [each for each in unneeded if each in modules]


def test_every_verb_is_there_and_explains_itself() -> None:
    for name in summaries():
        command = importlib.import_module(module_of(name)).command
        assert isinstance(command, click.Command), name
        assert command.name == name, name
        assert command.short_help == summaries()[name], name
        assert command.help and len(command.help) > 80, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_help_groups_verbs_by_question(run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    at = [outcome.out.index(question) for question in QUESTIONS]
    assert at == sorted(at)
    for name in summaries():
        assert f"\n  {name} " in outcome.out
    assert "Exit codes" in outcome.out


def test_version(run) -> None:
    assert run("--version").out.startswith("stantools 0.")


def test_a_process_ends_when_all_is_said(tmp_path: Path) -> None:
    script = (
        "import atexit, sys\nfrom stantools.cli import main as program\n"
        "program.be_interruptible = lambda: atexit.register(print, 'last words', flush=False)\n"
        f"sys.argv[1:] = ['info', {str(tmp_path / 'missing')!r}]\nprogram.main()"
    )
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (ExitCode.UNREACHABLE, "last words\n")
    assert done.stderr.startswith("stantools: error: ")


def test_unknown_verb(run) -> None:
    outcome = run("verfy")
    assert outcome.code == ExitCode.USAGE
    assert "did you mean verify" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("arguments", [["info"], ["info", "--nope", "x"], ["--nope"], ["verify", "x", "-o", "xml"]])
def test_wrong_usage(run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == ExitCode.USAGE
    assert outcome.err.startswith("stantools: error: ")
    assert "--help" in outcome.err


@pytest.mark.parametrize("name", ["info", "verify", "forecast", "subs", "clients"])
def test_no_store(run, tmp_path: Path, name: str) -> None:
    for place in (tmp_path / "missing", tmp_path, Path(__file__)):
        outcome = run(name, place)
        assert outcome.code == ExitCode.UNREACHABLE
        assert outcome.err.startswith(f"stantools: error: {place}")
        assert "  -> " in outcome.err
        assert outcome.out == ""


def program_that_raises(error: BaseException) -> Program:
    program = Program("stantools")

    def raise_it() -> None:
        raise error

    raising = click.Command("boom", callback=raise_it)
    program.get_command = lambda ctx, name: raising  # type: ignore[method-assign]
    program.resolve_command = lambda ctx, args: ("boom", raising, args[1:])  # type: ignore[method-assign]
    return program


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            StoreUnreadableError("store: gone", "look elsewhere"),
            3,
            "stantools: error: store: gone\n  -> look elsewhere\n",
        ),
        (UsageError("nonsense"), 2, "stantools: error: nonsense\n"),
        (RefusedError("no", "insist"), 4, "stantools: error: no\n  -> insist\n"),
        (KeyboardInterrupt(), 130, "stantools: error: interrupted\n"),
        (PermissionError(13, "Permission denied", "/x\x1b[2J"), 3, "stantools: error: /x\\x1b[2J: Permission denied\n"),
        (MemoryError(), 3, "stantools: error: out of memory\n"),
        (BrokenPipeError(32, "Broken pipe"), 3, "stantools: error: Broken pipe\n"),  # a connection: stdout is open
    ],
)
def test_every_end_has_its_message_and_code(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        program_that_raises(error).main(["boom"])
    assert caught.value.code == code
    assert capsys.readouterr().err == text


def test_a_file_that_may_not_be_read_is_told_from_one_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, closed, said in (
        (tmp_path / "new", False, "Permission denied\n"),
        (tmp_path / "old", False, "Permission denied\n"),
        (tmp_path / "old", True, "may not read it; owner: "),
    ):
        (tmp_path / "old").touch()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
            if closed:  # also for root
                patch.setattr("stantools.store.permissions.is_refused", lambda path: True)
            program_that_raises(PermissionError(13, "Permission denied", str(place))).main(["boom"])
        told = capsys.readouterr().err
        assert caught.value.code == 3
        assert told.startswith(f"stantools: error: {place}: ")
        assert said in told
        assert ("sudo" in told) == closed


def test_unexpected_exception_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program_that_raises(ZeroDivisionError("x\x1b")).main(["boom"])
    assert caught.value.code == 3
    message = capsys.readouterr().err
    assert message.startswith("stantools: error: unexpected ZeroDivisionError: x\\x1b\n")
    assert "please report" in message
    assert "Traceback" not in message


def test_unexpected_exception_with_v_shows_where(golden: Path) -> None:
    code = (
        "import stantools.inspection.overview as o\n"
        "def bad(*a, **k): raise ZeroDivisionError('boom')\n"
        "o.overview = bad\n"
        "from stantools.cli.main import cli\n"
        f"cli.main(['info', '-v', {str(golden / 'basic' / 'datastore')!r}])"
    )
    result = python("-c", code)
    assert result.returncode == 3
    assert "Traceback" in result.stderr
    assert "boom" in result.stderr


@pytest.mark.parametrize("words", [("info", "-o", "ndjson"), ("verify",), ("verify", "--help"), ("--help",)])
def test_a_closed_pipe_ends_as_with_other_tools(golden: Path, words: tuple[str, ...]) -> None:
    store = golden / "many_channels" / "datastore"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        result = subprocess.run(
            [sys.executable, "-m", "stantools", *words, *([str(store)] if "--help" not in words else [])],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.stderr == ""
    assert result.returncode == -signal.SIGPIPE


def test_ctrl_c_while_the_program_is_loaded() -> None:
    """The signal comes at the first import, at some in between, and right before the verb."""
    for module in (
        "stantools.cli.main",
        "click",
        "stantools.cli.verbs",
        "stantools.cli.verify",
        "stantools.cli.progress",
    ):
        code = (
            "import os, signal, sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupting())\n"
            "from stantools.__main__ import main\n"
            "sys.argv[1:] = ['verify', '/dev/null']\n"
            "main()"
        )
        result = python("-c", code)
        assert result.returncode in (-signal.SIGINT, 130), (module, result.stderr)
        assert "Traceback" not in result.stderr, (module, result.stderr)


def test_a_job_in_the_background_stays_deaf_to_ctrl_c() -> None:
    """What `nohup` or a shell without job control ignores, stays ignored."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from stantools.__main__ import main\n"
        "sys.argv[1:] = ['--version']\n"
        "try: main()\n"
        "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    assert python("-c", code).stdout.endswith("True\n")


def test_color_always_reaches_a_pipe(golden: Path) -> None:
    store = str(golden / "dmg_clients_cut_payload" / "datastore")
    command = ["-m", "stantools", "verify", store, "--color"]
    always, auto, never = (python(*command, when) for when in ("always", "auto", "never"))
    assert "\x1b[31m" in always.stdout
    assert "\x1b[" not in auto.stdout + never.stdout
    assert "\x1b[31m" in python("-m", "stantools", "verify", "/nowhere", "--color", "always").stderr


def test_as_a_program(golden: Path) -> None:
    result = python("-m", "stantools", "info", str(golden / "basic" / "datastore"), "-o", "csv")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].startswith("name,first_seq,last_seq,count,bytes")


def test_output_in_a_poor_locale(golden: Path) -> None:
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = python(
        "-m", "stantools", "messages", str(golden / "basic" / "datastore"), "orders.eu.created", "--seq", "1", env=env
    )
    assert result.returncode == 0, result.stderr
    assert "\\u6771" in result.stdout


def test_escape() -> None:
    rows: list[tuple[str | bytes, str]] = [
        ("orders.eu", "orders.eu"),
        ("Zürich 東京", "Zürich 東京"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("back\\slash", "back\\\\slash"),
        ("\u202eevil", "\\u202eevil"),
        ("\x9b31m", "\\u009b31m"),
        (b"\xff\xfeok", "\\xff\\xfeok"),
        ("\U000e0001", "\\U000e0001"),
        ("", ""),
    ]
    for text, safe in rows:
        assert console.escape(text) == safe, (text, safe)
        assert console.escape(text).isprintable(), (text, safe)


def test_colors_only_when_wanted(run, golden: Path) -> None:
    store = golden / "dmg_subs_payload_flip" / "datastore"
    assert "\x1b[" not in run("verify", store).out
    always = CliRunnerWithColor().output("verify", store, "--color", "always")
    assert "\x1b[31m" in always
    assert "\x1b[" not in CliRunnerWithColor().output("verify", store, "--color", "never")


class CliRunnerWithColor:
    def output(self, *arguments: object) -> str:
        from click.testing import CliRunner

        return CliRunner().invoke(cli, [str(a) for a in arguments], color=True).stdout
