"""`guard` with real servers: the server runs exactly if its start destroys nothing, and it is the guard's process."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
import yaml
from click.testing import CliRunner

from stantools.cli import guard
from stantools.cli.main import cli
from tests import servers
from tests.inspection import stream_start_cases as cases
from tests.trees import tree

pytestmark = [pytest.mark.golden, pytest.mark.server]
ROOT = Path(__file__).parents[2]
STANTOOLS = [sys.executable, "-m", "stantools"]
#: cases and versions: their server starts, or would destroy something
SAMPLE = [
    ("ok_blocks15", "2.15.1", True),
    ("ok_kv15", "2.12.8", True),
    ("dmg_flip_len_idx_10", "2.10.26", False),
    ("left_new_msgs_tomb", "2.12.8", True),
    ("left_new_msgs_tomb", "2.14.6", False),
    ("s2_flip_block", "2.15.1", False),
]


def run_guard(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs guard in this process, which the command `echo started` does not replace."""

    def become(program: str, command: Sequence[str]) -> None:
        assert Path(program).name == command[0] == "echo"
        click.echo(" ".join(command[1:]))
        raise SystemExit(0)

    with mock.patch.object(guard, "_become", become):
        result = CliRunner().invoke(cli, ["guard", *map(str, arguments)], env=env)
    return subprocess.CompletedProcess(["guard"], result.exit_code, result.stdout, result.stderr)


def copy_of(case: str, place: Path) -> Path:
    shutil.copytree(cases.folder() / case / "store", place, copy_function=shutil.copyfile)
    return place


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., servers.NatsServer]]:
    """Makes servers on a copy of a case's store, behind guard; a directory named `store` of its own for each."""
    made: list[servers.NatsServer] = []

    def make(case: str, version: str, *options: str) -> servers.NatsServer:
        if not servers.binary(version).exists():
            pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
        place = tmp_path / f"server{len(made)}"
        server = servers.NatsServer(place, version)
        copy_of(case, server.store_dir)
        server.launcher = (*STANTOOLS, "guard", str(server.store_dir), *options, "--")
        made.append(server)
        return server

    yield make
    for server in made:
        server.kill()


def check_start(server: servers.NatsServer, starts: bool) -> None:
    before = tree(server.store_dir)
    server.start(ready=starts)
    assert server.process
    if starts:
        program = Path(f"/proc/{server.process.pid}/exe").resolve()
        assert program == servers.binary(server.version).resolve()
        server.process.send_signal(signal.SIGTERM)
        # without guard, 2.10 ends with either code as well
        assert server.process.wait(30) in ((0, 1) if server.version.startswith("2.10.") else (0,))
        return
    error = server.process.communicate(timeout=60)[1].decode()
    assert (server.process.returncode, "not started" in error) == (4, True)
    assert tree(server.store_dir) == before


@pytest.mark.parametrize(("case", "version", "starts"), SAMPLE)
def test_server_starts_unless_it_destroys(guarded: Any, case: str, version: str, starts: bool) -> None:
    # the version is that of the program
    check_start(guarded(case, version), starts)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.10.26", "2.12.8", "2.15.1"])
def test_every_case_with_a_server(guarded: Any, version: str) -> None:
    tried = 0
    for case in sorted({case for case, each in cases.single_server_cases() if each == version}):
        content, outcome = cases.expected(case), cases.outcome(case, version)
        # keys are not in the configuration here
        if not outcome["starts"] or outcome.get("hangs_at_start") or content["server_settings"]["jetstream"]:
            continue
        judged = (outcome.get("judged") or {}).values()
        tried += 1
        # messages of a certain age or with a lifetime have expired by now, which is accepted here
        aged = any((each.get("config") or {}).get("max_age") for each in content["original"]["streams"].values())
        expired = aged or "age" in case or "ttl" in case
        starts = expired or not any(each.get("intact_destroyed_on_disk") for each in judged)
        check_start(guarded(case, version, *(("--accept-limits",) if expired else ())), starts)
    assert tried > 50


def test_exit_code_is_the_programs(tmp_path: Path) -> None:
    store = copy_of("ok_blocks15", tmp_path / "store")
    script = "grep SigIgn /proc/self/status; env | grep OPENBLAS; exit 7"
    command = [*STANTOOLS, "guard", str(store), "--", "sh", "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (7, "")
    ignored = int(found.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    assert "OPENBLAS" not in found.stdout


def test_check_alone(tmp_path: Path) -> None:
    healthy, damaged = copy_of("ok_blocks15", tmp_path / "a"), copy_of("s2_flip_block", tmp_path / "b")
    assert run_guard(healthy, "--server-version", "2.15").returncode == 0
    assert run_guard(damaged, "--server-version", "2.15").returncode == 4
    assert run_guard(damaged, "--server-version", "0.25.6").returncode == 2


def test_a_first_start_runs_the_program(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        found = run_guard(tmp_path / name, "--", "echo", "started")
        assert (found.returncode, found.stdout) == (0, "started\n")
        assert "first start" in found.stderr
    assert not (tmp_path / "missing").exists()


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "note").write_text("x")
    found = run_guard(tmp_path, "--", "echo", "started")
    assert (found.returncode, found.stdout, "nothing was checked" in found.stderr) == (0, "started\n", True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note").write_text("x")
    found = run_guard(tmp_path / "other", "--copy-to", tmp_path / "copy", "--", "echo", "started")
    assert (found.returncode, found.stdout) == (0, "started\n"), found.stderr
    assert (tmp_path / "copy" / "note").read_text() == "x"
    assert run_guard(tmp_path / "note", "--", "echo").returncode == 2
    assert run_guard(tmp_path, "--", tmp_path / "no-program").returncode == 2


def test_what_was_not_checked_in_time_is_said(tmp_path: Path) -> None:
    store = copy_of("s2_flip_block", tmp_path / "store")
    found = run_guard(store, "--within", "0s", "--", "echo", "started")
    assert (found.returncode, found.stdout) == (0, "started\n")
    assert "NOT CHECKED" in found.stderr
    # What is unknown may destroy something.
    found = run_guard(store, "--within", "0s", "--copy-to", tmp_path / "copy", "--", "echo", "started")
    assert (found.returncode, found.stdout) == (0, "started\n")
    assert tree(tmp_path / "copy") == tree(store)


def test_an_encrypted_stream_is_not_checked_without_its_key(tmp_path: Path) -> None:
    store = copy_of("enc_flip_block", tmp_path / "store")
    key = cases.expected("enc_flip_block")["server_settings"]["jetstream"]["key"]
    found = run_guard(store, "--server-version", "2.15", "--", "echo", "started")
    assert (found.returncode, "its key was not given" in found.stderr) == (0, True)
    options = ("--server-version", "2.15", "--encryption-key-env", "KEY")
    assert run_guard(store, *options, "--", "echo", env={"KEY": key}).returncode == 4


def test_limits_may_be_accepted(tmp_path: Path) -> None:
    store = copy_of("limit_lowered", tmp_path / "store")
    refused = run_guard(store, "--server-version", "2.15", "--", "echo", "started")
    assert (refused.returncode, "--accept-limits" in refused.stderr) == (4, True)
    found = run_guard(store, "--server-version", "2.15", "--accept-limits", "--", "echo", "started")
    assert (found.returncode, found.stdout) == (0, "started\n")
    assert "removes 98 intact messages" in found.stderr


def test_a_copy_is_made_before_the_start(guarded: Any, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    server = guarded("s2_flip_block", "2.15.1", "--copy-to", f"{copies}/")
    before = tree(server.store_dir)
    server.start()
    server.stop()
    (copy,) = copies.iterdir()
    assert tree(copy) == before
    assert tree(server.store_dir) != before


def test_a_copy_never_replaces_anything(tmp_path: Path) -> None:
    store, there = copy_of("s2_flip_block", tmp_path / "store"), tmp_path / "there"
    there.mkdir()
    for place in (there, store / "inside"):
        found = run_guard(store, "--server-version", "2.15", "--copy-to", place, "--", "echo", "started")
        assert (found.returncode in (3, 4), found.stdout) == (True, "")
    assert not list(there.iterdir())
    healthy = copy_of("ok_blocks15", tmp_path / "healthy")
    assert run_guard(healthy, "--copy-to", tmp_path / "none", "--", "echo", "started").stdout == "started\n"
    assert not (tmp_path / "none").exists()


def test_a_directory_in_use_is_named(start_server: Any) -> None:
    from tests.natsclient import with_jetstream

    server = start_server()

    async def publish(js: Any) -> None:
        await js.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "storage": "file", "retention": "limits"})

    with_jetstream(server.url, publish)
    found = run_guard(server.store_dir, "--", "echo", "started")
    assert (found.returncode, found.stdout) == (4, "")
    assert f"process {server.process.pid}" in found.stderr


def test_a_directory_of_an_idle_server_is_named(start_server: Any) -> None:
    # after a minute without use, a server has no file open
    server = start_server()
    (server.store_dir / "jetstream/$G/streams/A/msgs").mkdir(parents=True)
    found = run_guard(server.store_dir, "--", "echo", "started")
    assert (found.returncode, found.stdout) == (4, "")
    assert f"process {server.process.pid}, a nats-server, has store_dir {server.store_dir}" in found.stderr


def test_file_stores_are_guarded(tmp_path: Path, golden_copy: Callable[[str], Path]) -> None:
    assert run_guard(golden_copy("dmg_server_missing"), "--", "echo", "started").returncode == 4
    healthy = run_guard(ROOT / "samples/healthy", "--", "echo", "started")
    assert (healthy.returncode, healthy.stdout, healthy.stderr) == (0, "started\n", "")
    # it does not start, and destroys nothing; with the truncate option it does
    torn = run_guard(ROOT / "samples/torn", "--", "echo", "started")
    assert (torn.returncode, "ends with exit code 1" in torn.stderr) == (0, True)


def test_nothing_heavy_is_imported_for_a_healthy_directory(tmp_path: Path) -> None:
    store = copy_of("ok_blocks15", tmp_path / "store")
    program = (
        "import sys; from stantools.cli.main import cli\n"
        f"try: cli.main(['guard', {str(store)!r}, '--server-version', '2.15'])\n"
        "except SystemExit as end: print(end.code, sorted({'numpy', 'asyncio', 'cryptography'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "0 []\n"


def test_the_time_ends_a_check_again_and_again() -> None:
    with pytest.raises(guard._TimeIsUp), guard._deadline(0.01):
        while True:
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# The samples

#: where the samples have their directories and programs
PLACES = {"/usr/local/bin/stantools": STANTOOLS, "stantools": STANTOOLS}


def systemd_settings(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def sample_commands() -> dict[str, list[str]]:
    folder = ROOT / "samples/guard"
    unit = systemd_settings(folder / "nats-server.service.d.conf")
    assert unit["ExecStart"][0] == ""  # it takes the place of the unit's own
    assert unit["RestartPreventExitStatus"] == ["4"]
    before = systemd_settings(folder / "nats-server-pre.service.d.conf")
    pod = yaml.safe_load((folder / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]
    lines = (folder / "Containerfile").read_text().splitlines()
    image = {line.split()[0]: line for line in lines if line.startswith(("ENTRYPOINT", "CMD"))}
    entry, arguments = (json.loads(image[name].partition(" ")[2]) for name in ("ENTRYPOINT", "CMD"))
    return {
        "drop-in": shlex.split(unit["ExecStart"][1]),
        "check of the drop-in": shlex.split(before["ExecStartPre"][0]),
        "init container": ["stantools", *pod["initContainers"][0]["args"]],
        "image": [*entry, *arguments],
    }


@pytest.mark.parametrize("name", ["drop-in", "check of the drop-in", "init container", "image"])
def test_samples_with_a_server(tmp_path: Path, name: str) -> None:
    port = servers.free_port()
    settings = {"host": "127.0.0.1", "port": port, "jetstream": {"store_dir": str(tmp_path / "healthy")}}
    (tmp_path / "server.json").write_text(json.dumps(settings))
    copy_of("ok_blocks15", tmp_path / "healthy")
    copy_of("s2_flip_block", tmp_path / "damaged")

    def command(store: Path) -> list[str]:
        words: list[str] = []
        for word in sample_commands()[name]:
            if word in PLACES:
                words += PLACES[word]
            elif word in ("/data", "/var/lib/nats"):
                words.append(str(store))
            elif word.endswith("nats-server"):
                words += [str(servers.binary("2.15.1")), "-a", "127.0.0.1", "-p", str(port)]
            else:
                words.append(str(tmp_path / "server.json") if word == "/etc/nats-server.conf" else word)
        return words

    refused = subprocess.run(command(tmp_path / "damaged"), capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "not started" in refused.stderr) == (4, True)
    process = subprocess.Popen(command(tmp_path / "healthy"), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        if "--" in sample_commands()[name]:
            assert any("Server is ready" in line for line in process.stderr)
            process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_the_time_of_a_check_is_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the alarm comes while the first one is handled, or in the last moment of a check that is complete."""
    set_timer, interruptions = signal.setitimer, list[int]()

    def handler(number: int, _frame: object) -> None:
        interruptions.append(number)

    at_once = False

    def set_late(which: int, seconds: float, interval: float = 0.0) -> None:
        if at_once or not seconds:  # the alarms of this test are its own
            signal.raise_signal(signal.SIGALRM)
        set_timer(which, 0)

    monkeypatch.setattr(signal, "setitimer", set_late)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        check_alarms(handler)
        at_once = True
        with pytest.raises(guard._TimeIsUp), guard._deadline(0):
            pass
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not interruptions


def check_alarms(handler: object) -> None:
    with guard._deadline(0):
        pass
    assert signal.getsignal(signal.SIGALRM) is handler
    noticed: list[str] = []
    with pytest.raises(guard._TimeIsUp), guard._deadline(0):
        try:
            signal.raise_signal(signal.SIGALRM)
        finally:
            signal.raise_signal(signal.SIGALRM)
            noticed.append("undone")
    assert noticed == ["undone"] and signal.getsignal(signal.SIGALRM) is handler
    # A library that handles everything does not make the check endless.
    with pytest.raises(guard._TimeIsUp), guard._deadline(0):
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)
