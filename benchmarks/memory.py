"""The most memory that whole commands take on a store of many gigabytes."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import BinaryIO

import stores
from measure import MB, Options, peak_memory, reread, stantools, table, verdict

from stantools.format.proto import store_pb2 as pb
from tests import boltfiles
from tests.durables import write_durables

_MEMORY, _SECONDS = 300, 2
_DURABLES_SECONDS = 10
#: Of a Raft log: bytes, the least that is read of it in a second, and the most memory in MiB.
_LOG_BYTES, _LOG_RATE, _LOG_MEMORY = 500_000_000, 300, 200
#: The channel of `stores.make_store`.
_CHANNEL = b"orders.eu.00000"
_MIB = 1 << 20


def section(options: Options) -> str:
    """Measures every verb that goes through a store."""
    with options.directory("memory") as place:
        store = stores.make_large_store(place / "store", options.large_bytes)
        out = place / "out"
        files, indexes = stores.all_files(store), stores.index_files(store)
        volume, biggest = stores.total_size(files), max(path.stat().st_size for path in indexes)
        commands = {
            "info": ("info", store),
            "verify": ("verify", store),
            "forecast": ("forecast", store, "--max-msgs", 0, "--max-bytes", 0),
            "salvage": ("salvage", store, "--out", out),
            "compact": ("compact", store, "--out", out),
            "truncate-bad-eof": ("truncate-bad-eof", store, "--dry-run"),
        }
        rows = []
        for name, arguments in commands.items():
            reread(indexes if name == "info" else files)
            seconds, most = peak_memory(stantools(*arguments))
            shutil.rmtree(out, ignore_errors=True)
            target, met = f"≤ {_MEMORY} MB", most.peak * _MIB <= _MEMORY * MB
            if name == "info":
                target, met = f"{target}, ≤ {_SECONDS} s", met and seconds <= _SECONDS
            rows.append(
                (name, seconds, *(f"{x:.0f}" for x in (most.peak, most.private, most.mapped)), verdict(target, met))
            )
    headers = ("whole command", "s", "most MiB", "private MiB", "mapped files MiB", "target")
    title = f"{volume / 1e9:.1f} GB, half of it in one slice whose index has {biggest / MB:.0f} MB"
    return f"**{title}**\n\n{table(headers, rows)}"


def durables(options: Options) -> str:
    """Measures the verbs that look at subscriptions on a store that has hardly anything else."""
    with options.directory("durables") as place:
        store = write_durables(place / "store", options.durables)
        files, out = stores.all_files(store), place / "out"
        rows = []
        for name, *more in (("subs",), ("info",), ("forecast",), ("verify",), ("salvage", "--out", out)):
            reread(files)
            seconds, most = peak_memory(stantools(name, store, *more))
            shutil.rmtree(out, ignore_errors=True)
            met = most.peak <= _MEMORY and seconds <= _DURABLES_SECONDS
            rows.append((name, seconds, f"{most.peak:.0f}", verdict(f"≤ {_MEMORY} MiB, ≤ {_DURABLES_SECONDS} s", met)))
    table_of_verbs = table(("whole command", "s", "most MiB", "target"), rows)
    return f"**{options.durables} durables in one channel**\n\n{table_of_verbs}"


def raft_logs(options: Options) -> str:
    """Measures the verbs that go through the Raft logs of clustered nodes."""
    rows = []
    for size in (200, 1024):
        with options.directory("raftlog") as place:
            log = _write_raft_log(place / "node" / "raft.log", size)
            for name in ("info", "verify"):
                seconds, busy, rate, most = _measured([log], stantools(name, log.parent), (0, 1))
                target = verdict(f"≥ {_LOG_RATE} MB/s, ≤ {_LOG_MEMORY} MiB", rate >= _LOG_RATE and most <= _LOG_MEMORY)
                rows.append((f"{name}, messages of {size} bytes", seconds, busy, f"{rate:.0f}", f"{most:.0f}", target))
            store = stores.make_store(place / "store", _sequence(_entries(size)), size)
            nodes: list[object] = []
            for name in "abc":
                (raft := place / name / "bench-cluster").mkdir(parents=True)
                os.link(log, raft / "raft.log")
                nodes += ["--node", f"{name}:data={store},raft={raft}"]
            words = stantools("merge", *nodes, "--dry-run")
            seconds, busy, rate, most = _measured([log, *stores.all_files(store)], words, (0,), logs=3)
            rows.append(
                (f"merge of three, messages of {size} bytes", seconds, busy, f"{rate:.0f}", f"{most:.0f}", None)
            )
    headers = ("whole command", "s", "CPU s", "MB per CPU s", "most MiB", "target")
    return f"**Raft logs of {_LOG_BYTES / MB:.0f} MB**\n\n{table(headers, rows)}"


def _measured(
    files: list[Path], words: list[str], accept: tuple[int, ...], *, logs: int = 1
) -> tuple[float, float, float, float]:
    """Returns seconds, those of the processor, megabytes of so many logs in each of these, and the most MiB."""
    reread(files)
    before = os.times()
    seconds, most = peak_memory(words, accept=accept)
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    # It is one thread: on a machine that does nothing else this is the rate on the clock.
    return seconds, busy, logs * files[0].stat().st_size / busy / MB, most.peak


def _entries(size: int) -> int:
    return (_LOG_BYTES // boltfiles.PAGE - 2) * (boltfiles.PAGE // (size + 160))


def _sequence(index: int) -> int:
    """Returns the sequence of the last message up to an entry."""
    return index - index // 100


def _write_raft_log(path: Path, size: int) -> Path:
    """Writes a Raft log of entries with a message each, a hundredth of which are acknowledgements instead."""
    body, per_leaf = os.urandom(size), boltfiles.PAGE // (size + 160)
    pages = _LOG_BYTES // boltfiles.PAGE
    path.parent.mkdir()
    with path.open("wb") as file:
        level: list[tuple[bytes, int]] = []
        for number in range(2, pages):
            first = (number - 2) * per_leaf + 1
            pairs = [(boltfiles.key(index), _entry(index, body)) for index in range(first, first + per_leaf)]
            _write_page(file, number, boltfiles.leaf(number, pairs))
            level.append((pairs[0][0], number))
        while len(level) > 1:
            parts = [level[at : at + 100] for at in range(0, len(level), 100)]
            level = [(part[0][0], pages + place) for place, part in enumerate(parts)]
            for (_, number), part in zip(level, parts, strict=True):
                _write_page(file, number, boltfiles.branch(number, part))
            pages += len(parts)
        stable = struct.pack("<QQ", 0, 0) + boltfiles.leaf(0, [(b"CurrentTerm", boltfiles.key(3))])
        buckets = [(b"conf", stable), (b"logs", struct.pack("<QQ", level[0][1], 0))]
        _write_page(file, pages, boltfiles.leaf(pages, buckets, buckets=True))
        for number in (0, 1):
            _write_page(file, number, boltfiles.meta(number, pages, pages + 1, number + 1))
    return path


def _entry(index: int, body: bytes) -> bytes:
    """Makes an entry with a message; one in a hundred tells of acknowledgements."""
    operation = pb.RaftOperation(channel_id=300)
    if index % 100:
        operation.publish_batch.messages.add(
            sequence=_sequence(index), subject=_CHANNEL, data=body, timestamp=stores.TIME + index
        )
    else:
        operation.op_type = pb.RaftOperation.SEND_AND_ACK
        operation.sub_sent_ack.channel = _CHANNEL
        operation.sub_sent_ack.ack.extend(range(max(index - 99, 1), index))
    return boltfiles.entry(index, operation.SerializeToString(), term=3)


def _write_page(file: BinaryIO, number: int, page: bytes) -> None:
    file.seek(number * boltfiles.PAGE)
    file.write(page.ljust(boltfiles.PAGE, b"\0"))
