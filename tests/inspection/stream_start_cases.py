"""Outcomes of real servers on golden JetStream directories, beside those of the forecast."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stantools.inspection.stream_forecast.directory_forecast import forecast_directory
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.sources.jetstream import stream_places
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.sealing import ServerKeys
from stantools.streamfiles.survey import StreamSurvey
from tests import goldenstores

STATE = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
SYSTEMATIC = ("systematic_10", "systematic_multi_15")
#: Differences that remain, by case, version and text, with their reasons.
KNOWN = [
    # nothing on disk tells any more that these messages were deleted
    (
        r"dmg_cut_last_inside_killed|dmg_missing_last_noidx|dmg_zero_all_last|dmg_zero_end_noidx|old_.*_noidx|"
        r"old_idx_missing",
        r".*",
        r".* served_wrong ",
    ),
    # 2.9 counts wrongly at the borders of blocks, and writes indexes of its own
    (r"ok_.*9|old_.*", r"2\.9.*", r".*(num_deleted|num_pending|\.fss|\.idx)"),
    # a store in the clear: the sizes depend on the server's members; deletions are counted in a way of their own
    (r"enc_plain_opened_with_key", r".*", r".*(num_deleted|meta\.inf|index\.db|\.blk|\.key)"),
    # another cipher is a setting of the server, which the directory does not tell
    (r"enc_other_cipher", r".*", r".*"),
    # consumers' counts after a block was read in vain
    (
        r"dmg_flip_last_payload_idx|ok_s2_10|s2_.*|limit_lowered|systematic_multi_15",
        r".*",
        r".*(num_pending|num_deleted)",
    ),
    # 2.10 takes 1.blk.tmp for a second 1.blk, and counts it in every way
    (r"left_tmp", r"2\.10.*", r".*"),
    # the truth of these cases leaves out messages that follow the compressed part of a block
    (r"s2_cut_block", r".*", r".*destroyed"),
    # o.dat is written again with another time
    (r"dmg_missing_msgs_dir|left_purged_but_moved", r"2\.1[45].*", r".*push1/o\.dat"),
    # index.db was written again when the stream was stopped
    (r"dmg_cons_inf_unknown", r"2\.1[12].*", r".*index\.db"),
    # empty folders do not survive the archive of golden cases
    (r"ok_newer.*", r".*", r"removes "),
    # where an acknowledgement floor begins that 2.10 to 2.12 create anew
    (r"dmg_meta_name_changed", r"2\.1[0-2].*", r".*acknone"),
    (r"ok_aged15", r"2\.10.*", r".*consumer d"),
    # a consumer whose wait for acknowledgements ends during the start
    (r"systematic_.*", r".*", r".*(consumer red|red/o\.dat)"),
    (r"systematic_multi_15", r".*", r"served_wrong \[\], not \[\[20, 20\]\]"),
    # a consumer's directory is deleted: once, the server did not get ready in time after it
    (r"systematic_multi_15", r"2\.12.*", r"starts True, not False"),
    # a table of missing sequences, filled before the damage is noticed
    (r"systematic_10", r".*", r"num_deleted [0-9]+, not (66|27)"),
    (r"systematic_10", r"2\.10.*", r".*msgs/[24]\.blk"),
]


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
        content = expected(path.parent.name)
        if "nodes" not in content and "servers" in content:
            for version in content["servers"]:
                yield path.parent.name, version


def outcome(case: str, version: str) -> dict[str, Any]:
    servers: dict[str, dict[str, Any]] = expected(case)["servers"]
    found = servers[version]
    return servers[found["same_as"]] if "same_as" in found else found


def stored_streams(store: Path, content: dict[str, Any]) -> list[StoredStream]:
    """Opens the streams of a store with the settings of its case."""
    key = content["server_settings"]["jetstream"].get("key")
    return [
        StoredStream(place, account, ServerKeys([key.encode()], account) if key else None)
        for account, place in stream_places(store)
    ]


def start_time(content: dict[str, Any]) -> int:
    """Returns the time of a start shortly after the store of a case was written."""
    return max(each["last_ts"] or 0 for each in content["original"]["streams"].values()) + 600 * 10**9


def forecast(store: Path, content: dict[str, Any], version: str) -> dict[str, Any]:
    """Predicts a start on a store with the settings of its case, shortly after it was written."""
    accounts = content["server_settings"].get("accounts")
    return forecast_directory(
        stored_streams(store, content),
        store,
        SERVER_RULES[version.rpartition(".")[0]],
        now=start_time(content),
        accounts=list(accounts) if accounts else None,
        survey=functools.cache(StreamSurvey),
    ).as_json()


def unexplained(case: str, version: str, found: Iterator[str]) -> list[str]:
    """Returns the differences without those that are known."""
    known = [text for cases, versions, text in KNOWN if re.fullmatch(cases, case) and re.fullmatch(versions, version)]
    return [each for each in found if not any(re.match(text, each) for text in known)]


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """Yields what the forecast tells otherwise than a real server did."""
    starts = wanted["starts"] and not wanted.get("hangs_at_start")
    if got["starts"] != starts:
        yield f"starts {got['starts']}, not {starts}"
    if not starts or not got["starts"]:
        return
    loaded = {name: each for name, each in got["streams"].items() if each["loaded"]}
    if set(loaded) != set(wanted["streams"]):
        yield f"loads {sorted(loaded)}, not {sorted(wanted['streams'])}"
    for name in set(loaded) & set(wanted["streams"]):
        yield from (f"{name}: {each}" for each in stream_differences(loaded[name], wanted["streams"][name]))
    for name, judged in wanted.get("judged", {}).items():
        if name in got["streams"]:
            yield from (f"{name} {each}" for each in loss_differences(got["streams"][name], judged))
    yield from file_differences(got, wanted.get("files_changed_by_start") or {})
    if got["directories_removed"] != sorted(wanted.get("directories_removed_by_start") or []):
        yield f"removes {got['directories_removed']}, not {wanted.get('directories_removed_by_start')}"


def mutation_differences(got: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    starts = wanted["starts"] and not wanted.get("hangs_at_start")
    crashed = bool(wanted.get("server_crashed_after_start"))
    if got["starts"] != starts:
        yield f"starts {got['starts']}, not {starts}"
    if not starts or not got["starts"] or crashed:
        return
    stream = got["streams"]["$G/ORDERS"]
    loaded = wanted.get("loaded", True)
    if stream["loaded"] != loaded:
        yield f"loaded {stream['loaded']}, not {loaded}"
    elif loaded:
        yield from stream_differences(stream, wanted)
    yield from loss_differences(stream, wanted)
    yield from file_differences(got, wanted.get("files_changed_by_start") or {})


def loss_differences(got: dict[str, Any], judged: dict[str, Any]) -> Iterator[str]:
    for name, key in (("destroyed", "intact_destroyed_on_disk"), ("served_wrong", "read_but_not_original")):
        if got[name] != judged.get(key, []):
            yield f"{name} {got[name]}, not {judged.get(key, [])}"


def stream_differences(got: dict[str, Any], real: dict[str, Any]) -> Iterator[str]:
    if bool(real.get("error")) != bool(got["error"]):
        yield f"error {got['error']}, not {real.get('error')}"
    if real.get("error") or got["error"]:
        return
    for name in (*STATE, "readable"):
        if got[name] != real[name]:
            yield f"{name} {got[name]}, not {real[name]}"
    delivered = real.get("delivered_from_start")
    if delivered and got["delivered_from_start"] not in (None, delivered["ranges"]):
        yield f"delivered {got['delivered_from_start']}, not {delivered['ranges']}"
    consumers = real.get("consumers") or {}
    if set(got["consumers"]) != set(consumers):
        yield f"consumers {sorted(got['consumers'])}, not {sorted(consumers)}"
    for name in set(consumers) & set(got["consumers"]):
        for key, value in got["consumers"][name].items():
            if value != consumers[name][key]:
                yield f"consumer {name}: {key} {value}, not {consumers[name][key]}"


def file_differences(got: dict[str, Any], changed: dict[str, Any]) -> Iterator[str]:
    for path in sorted(set(got["files_changed"]) | set(changed)):
        one, two = got["files_changed"].get(path), changed.get(path)
        if one == two:
            continue
        # their size depends on the version and the time
        sized = path.endswith(("index.db", "o.dat")) or (path.endswith("meta.inf") and two and not two["size_before"])
        if one and two and sized and (one["size_after"] is None) == (two["size_after"] is None):
            continue
        yield f"file {path}: {one}, not {two}"


def mutate(store: Path, mutation: dict[str, Any]) -> None:
    for file in mutation["also_removed"]:
        (store / file).unlink()
    path = store / mutation["file"]
    content, offset = bytearray(path.read_bytes()), mutation.get("offset") or 0
    match mutation["op"]:
        case "delete":
            path.unlink()
            return
        case "append":
            content += bytes.fromhex(mutation["hex"])
        case "append_zeros":
            content += bytes(mutation["count"])
        case "truncate":
            del content[offset:]
        case "set":
            content[offset] = mutation["value"]
        case "setbytes":
            new = bytes.fromhex(mutation["hex"])
            content[offset : offset + len(new)] = new
    path.write_bytes(content)
