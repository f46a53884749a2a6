"""Outcomes of real servers on golden JetStream directories, beside those of the forecast."""

from __future__ import annotations

import functools
import json
import tempfile
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stantools.inspection.stream_forecast.directory_forecast import DirectoryForecast, forecast_directory
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.sources.jetstream import stream_places
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.sealing import ServerKeys
from stantools.streamfiles.survey import StreamSurvey
from tests import goldenstores


@functools.cache
def folder() -> Path:
    return goldenstores.unpacked() / "jetstream"


@functools.cache
def expected(case: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder() / case / "expected.json").read_text())
    return content


def single_server_cases() -> Iterator[tuple[str, str]]:
    """Yields case and version of every outcome of a server by itself."""
    for path in sorted(folder().glob("*/expected.json")):
        case = path.parent.name
        content = expected(case)
        if "nodes" not in content and "servers" in content:
            for version in content["servers"]:
                yield case, version


def outcome(case: str, version: str) -> dict[str, Any]:
    servers = expected(case)["servers"]
    found: dict[str, Any] = servers[version]
    return servers[found["same_as"]] if "same_as" in found else found


def short(version: str) -> str:
    return version.rpartition(".")[0]


def forecast(store: Path, settings: dict[str, Any], version: str, now: int) -> DirectoryForecast:
    key = settings["jetstream"].get("key")
    accounts = list(settings["accounts"]) if settings.get("accounts") else None
    return forecast_store(store, SERVER_RULES[short(version)], key, settings["jetstream"].get("cipher"), accounts, now)


def forecast_store(store, rules, key, cipher, accounts, now):
    streams = [
        StoredStream(place, account, ServerKeys([key.encode()], account) if key else None)
        for account, place in stream_places(store)
    ]
    return forecast_directory(streams, store, rules, now=now, accounts=accounts, survey=functools.cache(StreamSurvey))


def start_time(content: dict[str, Any]) -> int:
    """A time shortly after the directory was written."""
    last = [each["last_ts"] or 0 for each in content["original"]["streams"].values()] if "streams" in content["original"] else [content["original"]["last_ts"]]
    return max(last) + 600 * 10**9


STATE = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """Yields what the forecast says otherwise than a real server did."""
    starts = wanted["starts"] and not wanted.get("hangs_at_start")
    if got["starts"] != starts:
        yield f"starts {got['starts']}, not {starts}"
        return
    if not starts:
        return
    loaded = {name: each for name, each in got["streams"].items() if each["loaded"]}
    if set(loaded) != set(wanted["streams"]):
        yield f"loads {sorted(loaded)}, not {sorted(wanted['streams'])}"
    for name, real in wanted["streams"].items():
        if name in loaded:
            yield from (f"{name}: {each}" for each in stream_differences(loaded[name], real))
    for name, judged in wanted.get("judged", {}).items():
        if name not in got["streams"]:
            continue
        if got["streams"][name]["destroyed"] != judged["intact_destroyed_on_disk"]:
            yield f"{name} destroyed {got['streams'][name]['destroyed']}, not {judged['intact_destroyed_on_disk']}"
        wrong = judged.get("read_but_not_original", [])
        if got["streams"][name]["served_wrong"] != wrong:
            yield f"{name} served_wrong {got['streams'][name]['served_wrong']}, not {wrong}"
    yield from file_differences(got, wanted.get("files_changed_by_start") or {})
    if got["directories_removed"] != sorted(wanted.get("directories_removed_by_start") or []):
        yield f"removes {got['directories_removed']}, not {wanted.get('directories_removed_by_start')}"


def stream_differences(got: dict[str, Any], real: dict[str, Any]) -> Iterator[str]:
    if real.get("error"):
        if not got["error"]:
            yield f"no error, expected {real['error']}"
        return
    if got["error"]:
        yield f"error {got['error']}"
        return
    for name in STATE:
        if got[name] != real[name]:
            yield f"{name} {got[name]}, not {real[name]}"
    if got["readable"] != real["readable"]:
        yield f"readable {got['readable']}, not {real['readable']}"
    if real.get("delivered_from_start") is not None and got["delivered_from_start"] is not None:
        if got["delivered_from_start"] != real["delivered_from_start"]["ranges"]:
            yield f"delivered {got['delivered_from_start']}, not {real['delivered_from_start']['ranges']}"
    consumers = real.get("consumers") or {}
    if set(got["consumers"]) != set(consumers):
        yield f"consumers {sorted(got['consumers'])}, not {sorted(consumers)}"
    for name, each in consumers.items():
        each.pop("paused", None)
        if name in got["consumers"] and got["consumers"][name] != each:
            yield f"consumer {name}: {json.dumps(got['consumers'][name])}, not {json.dumps(each)}"


def file_differences(got: dict[str, Any], changed: dict[str, Any]) -> Iterator[str]:
    for path in sorted(set(got["files_changed"]) | set(changed)):
        one, two = got["files_changed"].get(path), changed.get(path)
        if one == two:
            continue
        if one and two and path.endswith(("index.db", "o.dat", ".fss", ".idx")):
            # the size depends on the version and the time
            if (one["size_after"] is None) == (two["size_after"] is None):
                continue
        yield f"file {path}: {one}, not {two}"


SYSTEMATIC = ("systematic_10", "systematic_multi_15")


def mutate(store: Path, mutation: dict[str, Any]) -> None:
    for file in mutation["also_removed"]:
        (store / file).unlink()
    path = store / mutation["file"]
    match mutation["op"]:
        case "delete":
            path.unlink()
            return
        case "append":
            path.write_bytes(path.read_bytes() + bytes.fromhex(mutation["hex"]))
            return
        case "append_zeros":
            path.write_bytes(path.read_bytes() + bytes(mutation["count"]))
            return
        case "truncate":
            path.write_bytes(path.read_bytes()[: mutation["offset"]])
            return
        case op:
            content = bytearray(path.read_bytes())
            new = bytes([mutation["value"]]) if op == "set" else bytes.fromhex(mutation["hex"])
            content[mutation["offset"] : mutation["offset"] + len(new)] = new
            path.write_bytes(content)


def mutation_differences(got: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    starts = wanted["starts"] and not wanted.get("hangs_at_start")
    if got["starts"] != starts:
        yield f"starts {got['starts']}, not {starts}"
        return
    if not starts:
        return
    stream = got["streams"]["$G/ORDERS"]
    loaded = wanted.get("loaded", True)
    if stream["loaded"] != loaded:
        yield f"loaded {stream['loaded']}, not {loaded}"
    elif loaded:
        yield from stream_differences(stream, wanted)
    if stream["destroyed"] != wanted["intact_destroyed_on_disk"]:
        yield f"destroyed {stream['destroyed']}, not {wanted['intact_destroyed_on_disk']}"
    if stream["served_wrong"] != wanted["read_but_not_original"]:
        yield f"served_wrong {stream['served_wrong']}, not {wanted['read_but_not_original']}"
    yield from file_differences(got, wanted.get("files_changed_by_start") or {})
