"""The next steps that reports about JetStream directories, nodes and backups name: each command is run as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stantools.cli.main import cli
from tests.cli.test_guard import run_guard

pytestmark = pytest.mark.golden
_COMMAND = re.compile(r"^  ((?:cp|stantools) .*)$", re.MULTILINE)
_QUOTED = re.compile(r"`(stantools [^`]*)`")


def run(*words: object) -> Result:
    done = CliRunner().invoke(cli, [str(each) for each in words], prog_name="stantools")
    assert "Traceback" not in done.stderr and "error: unexpected" not in done.stderr, done.stderr
    return done


def take(command: str) -> Result | None:
    """Runs a printed command."""
    program, *words = shlex.split(command)
    if program == "cp":
        flag, source, target = words
        assert flag == "-a" and not Path(target).exists()
        shutil.copytree(source, target)
        return None
    return run(*words)


def steps_after(*words: object, incomplete: bool = False) -> list[str]:
    """Runs a verb, then every command that it names as the next step; returns these."""
    commands = _COMMAND.findall(run(*words).stdout.partition("\nnext: ")[2])
    for each in commands:
        done = take(each)
        assert done is None or done.exit_code in ((1,) if incomplete else (0, 5)), (each, done.output)
    return commands


@pytest.fixture
def damaged(golden_jetstream: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_jetstream / "dmg_two_flips" / "store", tmp_path / "js"))


@pytest.mark.parametrize("verb", ["verify", "doctor", "forecast"])
def test_the_steps_for_a_directory(verb: str, damaged: Path) -> None:
    assert steps_after(verb, damaged) == [
        f"cp -a {damaged} {damaged}.copy",
        f"stantools salvage {damaged} --out {damaged}.salvaged",
    ]
    assert run("verify", f"{damaged}.salvaged").exit_code == 0


@pytest.mark.parametrize("part", ["", "ORDERS", "ORDERS/msgs"])
@pytest.mark.parametrize("verb", ["verify", "doctor"])
def test_copies_of_a_part_are_not_put_where_a_server_takes_them_for_data(verb: str, part: str, damaged: Path) -> None:
    (streams,) = damaged.glob("jetstream/*/streams")
    before = sorted(damaged.glob("jetstream/**/*"))
    place = streams / part
    text = run(verb, place).output
    assert steps_after(verb, place) == [
        f"cp -a {shlex.quote(str(place))} {damaged / place.name}.copy",
        f"stantools salvage {shlex.quote(str(place))} --out {damaged / place.name}.salvaged",
    ]
    assert sorted(damaged.glob("jetstream/**/*")) == before
    for each in _QUOTED.findall(text):
        assert "--out" not in each or f"--out {damaged / place.name}.salvaged" in each


@pytest.mark.parametrize(
    ("verb", "apart"), [("verify", False), ("doctor", False), ("forecast", False), ("forecast", True)]
)
def test_the_steps_for_nodes(verb: str, apart: bool, golden_jetstream: Path, tmp_path: Path) -> None:
    nodes = []
    for node in ("n1", "n2", "n3"):
        nodes.append(tmp_path / (f"disk-{node}/data" if apart else f"nodes/{node}"))
        shutil.copytree(golden_jetstream / "cl_flip_each_node" / "store" / node, nodes[-1])
    shutil.copytree(golden_jetstream / "ok_basic15" / "store", tmp_path / "other")  # not theirs
    new = tmp_path / "nodes.salvaged"
    if not apart:
        steps_after(verb, tmp_path / "nodes")
    else:
        new = Path(f"{nodes[0]}.merged")
        assert steps_after(verb, *nodes) == [
            *(f"cp -a {each} {each}.copy" for each in nodes),
            f"stantools merge {' '.join(map(str, nodes))} --out {new}",
        ]
    info = run("info", new).stdout
    assert run("verify", new).exit_code == 0 and "EVENTS" in info and "ORDERS" in info


def test_the_steps_for_backups(golden_jetstream: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    assert run("salvage", golden_jetstream / "ok_basic15/store", "--to", "backup", "--out", backups).exit_code == 0
    for verb, place in (("doctor", backups / "ORDERS"), ("forecast", backups / "ORDERS"), ("info", backups)):
        done = run(verb, place)
        assert done.exit_code == 3
        commands = _QUOTED.findall(done.stderr)
        assert commands
        for each in commands:
            taken = take(each)
            assert taken and taken.exit_code == 0, (each, taken)
    assert f"`nats stream restore {backups / 'ORDERS'}`" in run("doctor", backups / "ORDERS").stderr
    assert "(2: EVENTS, ORDERS)" in run("verify", backups).stderr
    refused = run("repair", backups / "ORDERS")
    assert refused.exit_code == 4
    for each in _QUOTED.findall(refused.stderr):
        taken = take(each)
        assert taken and taken.exit_code == 0 and run("verify", backups / "ORDERS.salvaged").exit_code == 0
    shutil.rmtree(backups / "ORDERS.salvaged")


def test_the_steps_for_a_damaged_backup(golden_jetstream: Path, tmp_path: Path) -> None:
    assert (
        run("salvage", golden_jetstream / "ok_basic15/store", "--to", "backup", "--out", tmp_path / "b").exit_code == 0
    )
    place = tmp_path / "b" / "ORDERS"
    archive = place / "stream.tar.s2"
    archive.write_bytes(archive.read_bytes()[:-300])
    assert steps_after("verify", place, incomplete=True) == [f"stantools salvage {place} --out {place}.salvaged"]
    assert run("info", f"{place}.salvaged").exit_code == 0


@pytest.fixture
def encrypted(golden_jetstream: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_jetstream / "ok_aes12" / "store", tmp_path / "sealed"))


def key_file(place: Path, key: str) -> str:
    place.write_text(key, encoding="utf-8")
    return str(place)


def test_the_steps_have_the_key(encrypted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = encrypted.glob("jetstream/*/streams/ORDERS/msgs/2.blk")
    block.write_bytes(block.read_bytes()[:3000])
    key = key_file(tmp_path / "key", "another-key")
    monkeypatch.setenv("JS_KEY", "another-key")
    for option in (f"--encryption-key-file {key}", "--encryption-key-env JS_KEY"):
        for verb in ("verify", "doctor", "forecast"):
            assert steps_after(verb, encrypted, *option.split())[1].endswith(option)
            for made in tmp_path.glob("sealed.*"):
                shutil.rmtree(made)


@pytest.mark.parametrize(
    ("key", "reason"), [("", "its key was not given"), ("wrong", "the given key does not open it")]
)
def test_what_no_key_opens_is_never_called_empty(key: str, reason: str, encrypted: Path, tmp_path: Path) -> None:
    options = ("--encryption-key-file", key_file(tmp_path / "wrong", key)) if key else ()
    right = key_file(tmp_path / "right", "another-key")
    for verb in ("verify", "doctor", "forecast"):
        done = run(verb, encrypted, *options)
        assert done.exit_code == 1 and f"$G/ORDERS can be judged, as {reason}" in done.stdout
        commands = _COMMAND.findall(done.stdout.partition("\nnext: ")[2])
        assert commands[0] == f"cp -a {encrypted} {encrypted}.copy"
        opened = take(commands[1].replace("<key-file>", right).replace("'", ""))
        assert opened and opened.exit_code == 0
    messages = run("messages", encrypted, "ORDERS", *options)
    assert messages.exit_code == 1 and "warning: ORDERS/meta.key: " in messages.stderr
    compared = run("diff", encrypted, encrypted, *options)
    assert compared.exit_code == 1 and f"the stream is encrypted, and {reason}: it is not compared" in compared.stdout
    guarded = run_guard(encrypted, "--server-version", "2.15", *options, "--", "echo", "started")
    assert guarded.stdout == "started\n" and f"NOT CHECKED: $G/ORDERS is encrypted, and {reason}" in guarded.stderr
