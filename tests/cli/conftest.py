"""Running the command line inside the test process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.store import locks

#: Instead of the seconds that a store must have been left alone: the stores here are written right before.
QUIET = 0.05


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def ndjson(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `stantools` with some arguments; a traceback of an unexpected exception fails the test.

    A store that was just written is watched for a moment only. `test_a_store_is_watched_for_two_seconds` does not.
    """
    monkeypatch.setattr(locks, "QUIET_SECONDS", QUIET)

    def invoke(*arguments: object, env: dict[str, str] | None = None, stdin: str | None = None) -> Outcome:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], env=env, input=stdin, prog_name="stantools")
        assert "error: unexpected" not in result.stderr, result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return invoke
