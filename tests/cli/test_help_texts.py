"""The help of every command, as it is on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from broker.config.reader import overview, tls_help
from stantools.cli.main import cli


def paths(command: click.Command, context: click.Context) -> Iterator[tuple[str, ...]]:
    yield ()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            for rest in paths(below, click.Context(below, parent=context, info_name=name)):
                yield name, *rest


COMMANDS = sorted(set(paths(cli, click.Context(cli))))


def test_all_commands_are_here() -> None:
    assert {("salvage",), ("migrate", "plan"), ("pipeline", "export"), ("tui",)} <= set(COMMANDS)


def test_they_fit_into_80_columns_and_have_options_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path in COMMANDS:
        shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="stantools", terminal_width=80)
        assert shown.exit_code == 0, path
        lines = shown.output.splitlines()
        assert [line for line in lines if len(line) > 80] == [], path
        if path and path != ("broker",):
            check_groups(path, lines)


def check_groups(path: tuple[str, ...], lines: list[str]) -> None:
    """What most commands have is apart from what this one does."""
    group = ""
    of = {}
    for line in lines:
        if line.endswith(":") and line[:1].isupper():
            group = line[:-1]
        elif line.startswith("  -"):
            of[line.split()[0].rstrip(",")] = group
    assert of.get("--color", "Output") == "Output", path
    if path != ("sample",):  # it writes one
        assert of.get("--crc-poly", "Reading the store") == "Reading the store", path
    assert of.get("--server", "Connection") in ("Connection", "Options"), path


def test_the_brokers_help_fits_and_its_error_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    from broker.cli import main

    assert [line for text in (overview(), tls_help()) for line in text.splitlines() if len(line) > 80] == []
    assert main(["-foo"]) == 0  # as the original
    shown = capsys.readouterr()
    assert shown.err == "flag provided but not defined: -foo\n"
    assert shown.out.splitlines()[-1] == "flag provided but not defined: -foo"
    for strict in ("--strict_exit", "-strict_exit", "--strict_exit=true"):
        assert main([strict, "-foo"]) == 2
        assert main(["-foo", strict]) == 2
    assert main(["--strict_exit=false", "-foo"]) == 0
    capsys.readouterr()
    assert main(["--strict-exit"]) == 2, "of other spelling, but meant"
    shown = capsys.readouterr()
    assert shown.err == "flag provided but not defined: -strict-exit\n"
    assert shown.out.splitlines()[-1] == f"{shown.err.strip()}; did you mean -strict_exit?"
    assert main(["--strict_exit", "--version"]) == 0
