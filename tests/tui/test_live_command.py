"""`stantools tui` with servers: what is refused before the screen is taken."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no STORE and no server was given"),
        (("--monitor", "nats://me:secret@host:4222"), "monitoring uses HTTP"),
        (("--monitor", "http://me:secret@host:99999"), "monitoring URL is malformed"),
        (("--monitor", "http://host:8222"), "needs a terminal"),
        (("--server", "http://me:secret@host:8222"), "there are no servers for 'http' URLs"),
    ],
)
def test_refused(words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    result = CliRunner().invoke(cli, ["tui", *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "secret" not in result.output + result.stderr
