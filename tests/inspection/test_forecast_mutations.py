"""Both collections of mutations: the forecast of every one of them, in both modes, equals what the real server did."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.forecast import Forecast, forecast_both
from stantools.store.directory import SERVER_FILE, WITNESS_FILE, open_datastore
from tests.conftest import MUTATION_SETS, load_expected, others_slow
from tests.inspection import forecast_golden as g
from tests.mutations import apply_mutation


def outcome(ours: Forecast, base: dict[str, Any]) -> dict[str, Any]:
    """A forecast as the collections have outcomes: what is as in the base is "same"."""
    log = [line for line in ours.log if not line.startswith("[INF]") or "has been truncated" in line]
    changed = {path: list(sizes) for path, sizes in ours.files_changed().items() if path != WITNESS_FILE}
    if SERVER_FILE in ours.run_changes:
        changed[SERVER_FILE] = list(ours.files_changed_by_run()[SERVER_FILE])
    result: dict[str, Any] = {"started": ours.starts, "exit_code": ours.exit_code, "log": log}
    if not ours.starts:
        return result | {"files_changed": changed}
    if not ours.recovered:
        return result | {"recovered": False, "files_changed": changed}
    known = base["channels"]
    channels, subscriptions = {}, {}
    for name, channel in ours.channels.items():
        facts = g.channel_json(channel, full=False)
        before = g.expected_channel(known[name])
        same = {each: before[each] for each in facts if each in before} == facts
        channels[name] = "same" if same else facts
        recovered = [g.subscription_json(each) for each in channel.subscriptions]
        subscriptions[name] = "same" if recovered == before["subscriptions"] else recovered
    result["channels"] = "same" if set(channels.values() if _flat(channels) else [1]) == {"same"} else channels
    result["subscriptions"] = "same" if all(each == "same" for each in subscriptions.values()) else subscriptions
    clients = [each.decode() for each in sorted(ours.clients)]
    result["clients"] = "same" if clients == [each["ID"] for each in base["clients"]] else clients
    info = g.info_json(ours)
    result["server_info"] = "same" if info == base["server_info"] else info
    return result | {"files_changed": changed}


def _flat(channels: dict[str, Any]) -> bool:
    return all(isinstance(each, str) for each in channels.values())


def _comparable(theirs: dict[str, Any]) -> dict[str, Any]:
    result = dict(theirs)
    if isinstance(result.get("channels"), dict):
        result["channels"] = {
            name: each if each == "same" else g.expected_channel(each) for name, each in result["channels"].items()
        }
    return result


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    theirs = _comparable(theirs)
    found = [f"log {ours['log']} instead of {theirs['log']}"] if g.log_differs(ours["log"], theirs["log"]) else []
    for name in sorted({*ours, *theirs} - {"log"}):
        if ours.get(name) != theirs.get(name):
            found.append(f"{name} {ours.get(name)} instead of {theirs.get(name)}")
    return found


@pytest.mark.parametrize("part", others_slow(range(4), {0}))
@pytest.mark.parametrize("collection", MUTATION_SETS)
def test_mutations(collection: str, part: int, golden: Path, tmp_path: Path) -> None:
    expected = load_expected(collection)
    options = g.options_of(expected["open_args"], workers=1)
    store = tmp_path / "store"
    shutil.copytree(golden / collection / "datastore", store, copy_function=shutil.copyfile)
    failures = []
    for mutation in expected["mutations"][part::4]:
        path = store / mutation["file"]
        original = path.read_bytes()
        apply_mutation(store, mutation)
        for mode, ours in zip(
            ("server_open", "server_open_truncate"), forecast_both(open_datastore(store), options), strict=True
        ):
            theirs = expected["outcomes"][mutation[mode]]
            if wrong := differences(outcome(ours, expected["base"]), theirs):
                failures.append(f"{mutation['id']} {mode}: {'; '.join(wrong)}")
        path.write_bytes(original)
    assert not failures, "\n".join(failures)
