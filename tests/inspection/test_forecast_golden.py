"""Every golden store: the forecast equals what the real server 0.23.2 did with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.forecast import Forecast, forecast, forecast_both
from stantools.store.directory import open_datastore
from tests.conftest import cases_by_kind, load_expected
from tests.inspection import forecast_golden as g


def _open(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> tuple[Path, dict[str, Any]]:
    """The store, and what else the options need: a copy only where the case needs a set-up."""
    expected = load_expected(case)
    if not expected["setup"]:
        return golden / case / "datastore", {}
    store = golden_copy(case)
    if "opened_as" not in expected:
        return store, {}
    # The server of the golden data belonged to another user, to whom all but the prepared file was open.
    prepared = {step["path"] for step in expected["setup"]}
    for path in [store, *store.rglob("*")]:
        if str(path.relative_to(store)) not in prepared:
            path.chmod(0o777 if path.is_dir() else 0o666)
    return store, {"access": g.STRANGER}


def _check(ours: Forecast, theirs: dict[str, Any], healthy: dict[str, Any]) -> None:
    assert ours.starts == theirs["started"]
    assert ours.exit_code == theirs["exit_code"]
    assert ours.error == theirs.get("error")
    assert not g.log_differs(ours.log, g.recovery_lines(theirs["log"])), (ours.log, theirs["log"])
    assert g.sizes_json(ours.files_changed()) == theirs["files_changed_by_recovery"]
    assert g.sizes_json(ours.files_changed_by_run()) == theirs.get(
        "files_changed_by_server_run", theirs["files_changed_by_recovery"]
    )
    if not ours.starts:
        return
    assert ours.recovered == theirs.get("recovered", True)
    if not ours.recovered:
        assert ours.channels == {}
        return
    state = theirs if "channels" in theirs else healthy
    channels = {name: g.channel_json(channel) for name, channel in ours.channels.items()}
    assert channels == {name: g.expected_channel(each) for name, each in state["channels"].items()}
    clients = [each if isinstance(each, str) else each["ID"] for each in state["clients"]]
    assert [each.decode() for each in sorted(ours.clients)] == clients
    assert g.info_json(ours) == state["server_info"]
    if "replay" in theirs:
        replay = {name: g.replayed(channel) for name, channel in ours.channels.items()}
        assert replay == {name: g.replay_of(each) for name, each in theirs["replay"].items()}
    stalls = [
        f"[ERR] STREAM: Error looking up message {channel.name}:{channel.stalls_at} ({channel.stall_error})"
        for channel in ours.channels.values()
        if channel.stalls_at is not None
    ]
    assert stalls == theirs.get("replay_log", [])


@pytest.mark.parametrize("case", cases_by_kind())
def test_case(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    expected = load_expected(case)
    path, more = _open(case, golden, golden_copy)
    store = open_datastore(path)
    options = g.options_of(expected["open_args"], **more)
    normal, truncate = forecast_both(store, options)
    _check(normal, expected["server_open"], expected)
    if "server_open_truncate" in expected:
        _check(truncate, expected["server_open_truncate"], expected)
    for other in expected.get("other_opens", []):
        assert not other["truncate_flag"]
        _check(forecast(store, g.options_of(other["open_args"], **more)), other, expected)
