"""Every golden store opens here as in the real server: the same state, the same changed files, the same refusals."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.stores import open_store
from broker.stores.interface import ChannelStore, Recovered, RecoveredSubscription, StateStore, StorageError
from broker.stores.store_options import EncryptionOptions, FileOptions
from stantools.inspection.forecast import forecast
from stantools.store.directory import open_datastore
from stantools.store.limits import StoreLimits
from tests.broker.stores.making import IEEE, block, everything
from tests.conftest import MUTATION_SETS, golden_cases, load_expected, others_slow
from tests.inspection import forecast_golden as g
from tests.mutations import apply_mutation

#: Release 0.23.2, which wrote down what is expected, takes a store without server.dat for empty. Later ones do not.
LOST_SERVER = ("dmg_server_missing", "dmg_version_only_server")
#: Takes as long as all the others, of which none is unlike its channels.
MANY_CHANNELS = {"many_channels"}


def opened(path: Path, arguments: list[str], *, truncate: bool = False, cluster_id: bytes | None = None) -> StateStore:
    """The store that a command line of the original asks for."""
    wanted = g.options_of(arguments)
    options = FileOptions(
        path, polynomial=wanted.crc.polynomial, crc=wanted.crc.check, truncate_bad_eof=truncate, sync=False
    )
    limits = StoreLimits(0, wanted.limits.channel)
    key = wanted.encryption_key
    return open_store("FILE", options, limits, EncryptionOptions(key) if key else None, cluster_id=cluster_id)


def sizes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def changed(before: dict[str, int], after: dict[str, int], root: Path, copy: Path) -> dict[str, Any]:
    """Sizes of the files that differ; those of the same size are compared by their content."""
    result = {}
    for path in sorted({*before, *after}):
        one, two = before.get(path), after.get(path)
        if one != two or (root / path).read_bytes() != (copy / path).read_bytes():
            result[path] = {"size_before": one, "size_after": two}
    return result


def subscription(each: RecoveredSubscription) -> dict[str, Any]:
    return g.subscription_json(each)


def lookups(store: ChannelStore) -> list[int]:
    messages = store.messages
    if not messages.count:
        return []
    found = []
    for sequence in range(messages.first, messages.last + 1):
        records = messages.read(sequence, 1)
        if len(records) and int(records.sequences[0]) == sequence:
            found.append(sequence)
    return found


def listed(ranges: list[list[int]]) -> list[int]:
    return [sequence for first, last in ranges for sequence in range(first, last + 1)]


def check_state(recovered: Recovered, state: dict[str, Any]) -> None:
    assert [each.id.decode() for each in sorted(recovered.clients, key=lambda each: each.id)] == [
        each if isinstance(each, str) else each["ID"] for each in state["clients"]
    ]
    info = recovered.server
    assert {each.json_name: getattr(info, each.name).decode() for each in info.DESCRIPTOR.fields} == state[
        "server_info"
    ]
    assert sorted(name.decode() for name in recovered.channels) == sorted(state["channels"])
    for name, (store, subscriptions) in recovered.channels.items():
        theirs = state["channels"][name.decode()]
        messages = store.messages
        ours = {
            "first_seq": messages.first,
            "last_seq": messages.last,
            "count": messages.count,
            "bytes": messages.bytes,
        }
        assert ours == {key: theirs[key] for key in ours}
        assert [subscription(each) for each in subscriptions] == sorted(
            theirs["subscriptions"], key=lambda each: each["ID"]
        )
        readable = lookups(store)
        assert {*readable} >= {*listed(theirs["readable"])} - {int(each) for each in theirs.get("wrong_message", {})}
        if "lookup_errors" not in theirs and "wrong_message" not in theirs:
            assert readable == listed(theirs["readable"])


def check_messages(store: ChannelStore, theirs: dict[str, Any]) -> None:
    found = everything(store.messages)
    digest = hashlib.sha256()
    for each in found:
        digest.update(each.sequence.to_bytes(8, "big") + each.timestamp.to_bytes(8, "big", signed=True) + each.data)
    assert digest.hexdigest() == theirs["digest"]
    for ours, message in zip(found, theirs["messages"], strict=False):
        assert (ours.sequence, ours.timestamp, len(ours.data)) == (message["seq"], message["ts"], len(ours.data))
        assert hashlib.sha256(ours.data).hexdigest() == message["sha256"]


def records(caplog: pytest.LogCaptureFixture) -> list[str]:
    names = {logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}
    return [f"[{names[each.levelno]}] STREAM: {each.getMessage()}" for each in caplog.records]


#: Lines of the streaming server.
OURS = re.compile(
    r"\[FTL\]|ghost durable|Duplicate shadow"
    r"|\[INF\] STREAM: (Recovering the state|No recovered state|Recovered \d+ channel)"
)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("case", others_slow(golden_cases(), {*golden_cases()} - MANY_CHANNELS))
def test_opening(case, truncate, golden, golden_copy, tmp_path, caplog):
    expected = load_expected(case)
    theirs = expected.get("server_open_truncate" if truncate else "server_open")
    if theirs is None:
        pytest.skip("opened in one way only")
    if "opened_as" in expected:
        pytest.skip("another user")
    path = golden_copy(case)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, symlinks=True)
    before = sizes(path)
    store = opened(path, expected["open_args"], truncate=truncate, cluster_id=b"test-cluster")
    caplog.set_level(logging.INFO)
    # What the later release logs, which was compared with the original where they are the same.
    options = g.options_of(expected["open_args"], version="0.25.6", store_name=str(path))
    predicted = forecast(open_datastore(path), options, truncate=truncate, lookups=False)
    try:
        recovered = store.recover()
    except StorageError as error:
        assert not theirs["started"]
        # The tool's own later release words one of the errors differently.
        assert str(error).replace(str(path), "<store>") == theirs["error"]
        recovered = None
    else:
        assert theirs["started"]
    assert changed(before, sizes(path), path, copy) == (
        g.sizes_json(predicted.files_changed()) if case in LOST_SERVER else theirs["files_changed_by_recovery"]
    )
    log = [line.replace(str(path), "<store>") for line in records(caplog)]
    assert [line for line in log if "Error looking up" not in line] == [
        line.replace(str(path), "<store>") for line in predicted.log if not OURS.search(line)
    ]
    if case in LOST_SERVER:
        assert recovered is not None and set(recovered.channels) == {name.encode() for name in predicted.channels}
    elif theirs["started"] and theirs.get("recovered", True):
        assert recovered is not None
        state = theirs if "channels" in theirs else expected
        check_state(recovered, state)
    else:
        assert recovered is None
    store.close()


def healthy() -> list[str]:
    return [
        case
        for case in golden_cases()
        if "damage" not in load_expected(case) and load_expected(case)["server_open"]["started"]
    ]


@pytest.mark.parametrize("case", others_slow(healthy(), {*healthy()} - MANY_CHANNELS))
def test_messages_and_going_on(case, golden_copy):
    expected = load_expected(case)
    if "opened_as" in expected:
        pytest.skip("another user")
    path = golden_copy(case)
    store = opened(path, expected["open_args"])
    recovered = store.recover()
    assert recovered is not None
    counts = {}
    for name, (channel, _) in recovered.channels.items():
        theirs = expected["channels"][name.decode()]
        if "lookup_errors" not in theirs and "wrong_message" not in theirs:
            check_messages(channel, theirs)
        messages = channel.messages
        new = block(name, messages.last + 1, [b"one", b"", b"three"], crc=store.crc or IEEE)
        messages.append(new)
        messages.flush()
        assert [each.data for each in everything(messages, first=int(new.sequences[0]))] == [b"one", b"", b"three"]
        counts[name] = messages.last
    store.close()
    again = opened(path, expected["open_args"]).recover()
    assert again is not None
    assert {name: channel.messages.last for name, (channel, _) in again.channels.items()} == counts


def check_mutations(collection, golden, tmp_path, caplog, mutations):
    """Opens mutated stores in both ways: what is forecast, which was compared with the original, is what happens."""
    expected = load_expected(collection)
    caplog.set_level(logging.INFO)
    for mutation in mutations:
        for truncate in (False, True):
            store = tmp_path / "store"
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(golden / collection / "datastore", store, copy_function=shutil.copyfile)
            apply_mutation(store, mutation)
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(store, copy, copy_function=shutil.copyfile)
            before = sizes(store)
            options = g.options_of(expected["open_args"], version="0.25.6", store_name=str(store), workers=1)
            predicted = forecast(open_datastore(store), options, truncate=truncate, lookups=False)
            caplog.clear()
            opening = opened(store, expected["open_args"], truncate=truncate, cluster_id=b"test-cluster")
            try:
                recovered = opening.recover()
            except StorageError as error:
                assert not predicted.starts
                assert str(error) == predicted.error
            else:
                assert predicted.starts
                assert (recovered is not None) == predicted.recovered
                channels = {} if recovered is None else recovered.channels
                assert {os.fsdecode(name) for name in channels} == {*predicted.channels}
                for name, (channel, subscriptions) in channels.items():
                    theirs, ours = predicted.channels[os.fsdecode(name)], channel.messages
                    assert (ours.first, ours.last, ours.count, ours.bytes) == (
                        theirs.first_seq,
                        theirs.last_seq,
                        theirs.count,
                        theirs.bytes,
                    )
                    assert [(each.state, tuple(each.pending)) for each in subscriptions] == [
                        (each.state, each.pending) for each in theirs.subscriptions
                    ]
                    found = everything(ours)
                    assert [each.sequence for each in found] == sorted({each.sequence for each in found})
                    ours.append(block(name, ours.last + 1, [b"new"]))
                    ours.flush()
                    assert everything(ours, first=ours.last)[0].data == b"new"
            changes = changed(before, sizes(store), store, copy)
            if not predicted.starts:
                assert changes == g.sizes_json(predicted.files_changed())
            log = [line for line in records(caplog) if "Error looking up" not in line]
            assert log == [line for line in predicted.log if not OURS.search(line)]
            opening.close()


@pytest.mark.parametrize("collection", MUTATION_SETS)
def test_some_mutations(collection, golden, tmp_path, caplog):
    check_mutations(collection, golden, tmp_path, caplog, load_expected(collection)["mutations"][3::25])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("collection", MUTATION_SETS)
def test_all_mutations(collection, part, golden, tmp_path, caplog):
    check_mutations(collection, golden, tmp_path, caplog, load_expected(collection)["mutations"][part::4])
