"""What is measured of the broker, and the tables of it."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from brokergrowth import clients, growth
from brokerrequests import requests
from brokerruns import STORES, Options, Runs, Way, attack, broker, load, nats, processor, race
from brokerstreams import streams
from measure import REPOSITORY, Sample, python, table, timed, verdict

from tests import servers

#: The original server on a machine of 2 cores with the client on the same cores, thousands of messages a second: raw
#: publishes by (bytes, connections), and of 50 channels in turn.
_RAW = {
    "MEMORY": {(128, 1): 311, (128, 4): 293, (1024, 1): 104, (1024, 4): 151},
    "FILE, no sync": {(128, 1): 364, (128, 4): 416, (1024, 1): 142, (1024, 4): 161},
    "FILE": {(128, 1): 220, (128, 4): 221, (1024, 1): 114, (1024, 4): 111},
}
_IN_TURN = {"MEMORY": 365, "FILE, no sync": 367, "FILE": 38.5}
#: The same server, a million stored messages to raw subscribers, in all.
_DELIVERED = {"MEMORY": {1: 564, 4: 673}, "FILE": {1: 305, 4: 0}}
#: What the project wants.
_RAW_GOAL = {"MEMORY": 300, "FILE, no sync": 300, "FILE": 180}
_CPU_GOAL = 3.5
_DELIVERY_GOAL = {1: 300, 4: 500}
_JETSTREAM_GOAL = 1.3
_CORE_GOAL = 1 / 3
_MEMORY_GOAL = 100
#: Milliseconds that one client may keep another one waiting.
_WAIT_GOAL = 50
#: Attacks (`broker/attack.py`), and how they are called here.
_ATTACKS = {
    "wildcards": "60,000 known subjects, 50 SUB f.*.qN",
    "subscriptions": "200,000 SUB, 100,000 UNSUB, close",
    "subjects": "messages to 200,000 subjects",
    "long_subjects": "20,000 subjects of 3.9 KB",
    "fan_out": "20 messages to 50,000 subscriptions",
    "deep": "20 searches through 131,071 patterns",
    "requests": "20,000 streaming clients connect",
    "bad_messages": "100,000 messages to be refused",
}
#: The same before what a client sends was handled in turns, on a machine of 2 cores that had other work, too.
_BEFORE_TURNS = {
    "wildcards": 16_040,
    "subscriptions": 1_755,
    "subjects": 3_315,
    "long_subjects": 1_509,
    "fan_out": 434,
    "deep": 5_291,
    "requests": 455,
    "bad_messages": 15,
}
_START_GOAL = {"": 0.2, "-m": 0.25}


def _on_broker(options: Options, store: str, mode: str, **more: object) -> dict[str, float]:
    with broker(options.place, STORES[store]) as server:
        return load(mode, server.port, server.pid, **more)


def _count(options: Options, size: int) -> int:
    return options.count if size < 1024 else options.count // 4


def _k(rate: float) -> str:
    return f"{rate / 1000:.1f}" if rate < 20_000 else f"{rate / 1000:.0f}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def publishing(options: Options) -> str:
    """Raw publishes, many under way."""
    ways: dict[str, Way] = {}
    about: dict[str, tuple[str, float, float]] = {}
    for store, known in _RAW.items():
        for (size, connections), reference in known.items():
            name = f"{store}, {size} B, {_several(connections, 'connection')}"
            count = _count(options, size)
            ways[name] = partial(_on_broker, options, store, "publish", count=count, size=size, connections=connections)
            about[name] = store, reference, _RAW_GOAL[store] if size == 128 else 0
        name = f"{store}, 128 B, 50 channels in turn"
        ways[name] = partial(_on_broker, options, store, "publish", count=options.count // 4, channels=50)
        about[name] = store, _IN_TURN[store], 0
    rows = []
    for name, runs in race(ways, options.rounds).items():
        _, reference, goal = about[name]
        cpu = runs.median("cpu")
        target = verdict(f"≥ {goal}k, ≤ {_CPU_GOAL} µs", runs.rate >= goal * 1000 and cpu <= _CPU_GOAL) if goal else ""
        rows.append((name, *_rates(runs), f"{cpu:.2f}", reference, _times(runs.rate, reference * 1000), target))
    return table(("raw publish", "k/s", "others", "CPU µs", "original k/s", "× original", "target"), rows)


def _rates(runs: Runs) -> tuple[str, str]:
    return f"{_k(runs.rate)} ({runs.spread})", f"{runs.median('others'):.1f}"


def _times(rate: float, reference: float) -> str:
    return f"{rate / reference:.2f}" if reference else ""


def _deliver(options: Options, store: str, subscribers: int) -> dict[str, float]:
    with broker(options.place, STORES[store]) as server:
        load("publish", server.port, server.pid, count=options.count)
        return load("subscribe", server.port, server.pid, count=options.count, connections=subscribers)


def delivery(options: Options) -> str:
    """Stored messages to subscribers."""
    ways: dict[str, Way] = {}
    about: dict[str, tuple[float, int]] = {}
    for store, known in _DELIVERED.items():
        for subscribers, reference in known.items():
            name = f"{store}, {_several(subscribers, 'subscriber')}"
            ways[name] = partial(_deliver, options, store, subscribers)
            about[name] = reference, _DELIVERY_GOAL[subscribers]
    rows = []
    for name, runs in race(ways, options.rounds).items():
        reference, goal = about[name]
        rows.append(
            (
                name,
                *_rates(runs),
                f"{runs.median('cpu'):.2f}",
                reference or None,
                _times(runs.rate, reference * 1000),
                verdict(f"≥ {goal}k", runs.rate >= goal * 1000),
            )
        )
    headers = (f"{options.count:,} stored messages to", "k/s", "others", "CPU µs", "original k/s", "× original")
    return table((*headers, "target"), rows)


def _on_nats(options: Options, version: str, mode: str, **more: object) -> dict[str, float]:
    with nats(options.place, version) as (port, pid):
        return load(mode, port, pid, **more)


def core(options: Options) -> str:
    """Plain NATS, against real servers."""
    parts = []
    for subscribers, title in ((0, "publish only"), (1, "1 publisher, 1 subscriber")):
        for size in (128, 1024):
            count = (2 if size == 128 else 1) * options.count
            more = {"count": count, "size": size, "connections": subscribers}
            ways: dict[str, Way] = {"broker": partial(_on_broker, options, "MEMORY", "core", **more)}
            for version in _versions():
                ways[f"nats-server {version}"] = partial(_on_nats, options, version, "core", **more)
            found = race(ways, options.rounds)
            ours = found["broker"].rate
            rows = []
            for name, runs in found.items():
                ratio = ours / runs.rate
                target = verdict("≥ 1/3", ratio >= _CORE_GOAL) if name != "broker" else ""
                rows.append((name, *_rates(runs), f"{runs.median('cpu'):.2f}", f"{ratio:.2f}", target))
            headers = (f"{title}, {size} B", "k/s", "others", "CPU µs", "broker / this", "target")
            parts.append(table(headers, rows))
    return "\n\n".join(parts)


def jetstream(options: Options) -> str:
    """The same publishes, to the broker and to file streams of real servers."""
    parts = []
    for size in (128, 1024):
        for connections in (1, 4):
            more = {"count": _count(options, size), "size": size, "connections": connections}
            ways: dict[str, Way] = {
                f"broker, {store}": partial(_on_broker, options, store, "publish", **more)
                for store in ("FILE, no sync", "FILE")
            }
            for version in _versions():
                ways[f"JetStream {version}"] = partial(_on_nats, options, version, "jetstream", **more)
            found = race(ways, options.rounds)
            without, synced = (found[f"broker, {store}"].rate for store in ("FILE, no sync", "FILE"))
            rows = []
            for name, runs in found.items():
                ratios: tuple[str, str, str] = ("", "", "")
                if name.startswith("JetStream"):
                    ratio = without / runs.rate
                    ratios = (
                        f"{ratio:.2f}",
                        f"{synced / runs.rate:.2f}",
                        verdict(f"≥ {_JETSTREAM_GOAL} ×", ratio >= _JETSTREAM_GOAL),
                    )
                rows.append((name, *_rates(runs), f"{runs.median('cpu'):.2f}", *ratios))
            title = f"{size} B, {_several(connections, 'connection')}"
            headers = (title, "k/s", "others", "CPU µs", "no sync / this", "FILE / this", "target")
            parts.append(table(headers, rows))
    return "\n\n".join(parts)


def _versions() -> list[str]:
    return [version for version in (servers.NEWEST, servers.OLDEST) if version in servers.available()]


def _start(compiled: Path | None, *more: str) -> dict[str, float]:
    """Starts a broker: seconds until its port is open, and until a client is greeted, also of processor time.

    Args:
        compiled: Where compiled modules are; None for none, not even Python's own.
        more: Options.
    """
    environment = _with_modules(compiled)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.perf_counter()
    command = python("-m", "broker", "-a", "127.0.0.1", "-p", port, *more)
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE) as process:
        try:
            while True:
                with (
                    contextlib.suppress(ConnectionRefusedError),
                    socket.create_connection(("127.0.0.1", port)) as client,
                ):
                    opened, used = time.perf_counter() - begin, processor(process.pid)
                    client.recv(5)  # INFO
                    greeted = time.perf_counter() - begin
                    return {"port": opened, "port-cpu": used, "ready": greeted, "ready-cpu": processor(process.pid)}
                if process.poll() is not None:
                    raise RuntimeError("the broker does not start")
                time.sleep(0.001)
        finally:
            process.kill()


def _with_modules(compiled: Path | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if compiled is not None:
        return environment | {"PYTHONPYCACHEPREFIX": str(compiled)}
    return environment | {"PYTHONPYCACHEPREFIX": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}


def start(options: Options) -> str:
    """Until clients can connect, and are greeted, with and without compiled modules."""
    rows = []
    for kept, compiled in (("kept", options.place / "modules"), ("none at all", None)):
        bare: list[Sample] = []
        found: dict[str, list[dict[str, float]]] = {"": [], "-m": []}
        for number in range(options.rounds + 1):
            took = timed(
                partial(subprocess.run, python("-c", "import asyncio, numpy"), env=_with_modules(compiled), check=True)
            )
            runs = {name: _start(compiled, *((name, "-1") if name else ())) for name in found}
            if number:  # the first run compiles
                bare.append(took)
                for name, run in runs.items():
                    found[name].append(run)
        unit = statistics.median(each.seconds for each in bare)
        processor = statistics.median(each.processor for each in bare)
        rows.append((f"compiled modules {kept}: python -c 'import asyncio, numpy'", unit, processor, "1.00", ""))
        for name, samples in found.items():
            for what, text in (("port", "port open"), ("ready", "client greeted")):
                seconds = statistics.median(run[what] for run in samples)
                used = statistics.median(run[f"{what}-cpu"] for run in samples)
                target = verdict(f"≤ {_START_GOAL[name]:g} s", seconds <= _START_GOAL[name])
                title = f"stan-broker{f' {name} PORT' if name else ''}: {text}"
                rows.append((title, seconds, used, f"{seconds / unit:.2f}", target))
    return table(("start", "s", "CPU s", "× import", "target"), rows)


def innocent(options: Options) -> str:
    """The longest wait of an innocent client while another one does its worst."""
    rows = []
    for name, before in _BEFORE_TURNS.items():
        waits = []
        for _ in range(options.rounds):
            with broker(options.place, STORES["MEMORY"]) as server:
                waits.append(attack(name, server.port))
        longest = statistics.median(wait["longest"] for wait in waits)
        alone = statistics.median(wait["alone"] for wait in waits)
        target = verdict(f"≤ {_WAIT_GOAL} ms", longest <= _WAIT_GOAL)
        rows.append((_ATTACKS[name], before, f"{longest:.0f}", f"{alone:.0f}", target))
    headers = ("longest wait of an innocent client, ms", "before turns", "now", "without attack", "target")
    return table(headers, rows)


def process(options: Options) -> str:
    """Start and memory."""
    starts: dict[str, list[float]] = {name: [] for name in ("stan-broker -v", *STORES)}
    idle: dict[str, float] = {}
    for _ in range(options.rounds):
        begin = time.perf_counter()
        subprocess.run(python("-m", "broker", "-v"), check=True, stdout=subprocess.DEVNULL)
        starts["stan-broker -v"].append(time.perf_counter() - begin)
        for name, store in STORES.items():
            with broker(options.place, store) as server:
                starts[name].append(server.start)
                idle[name] = server.memory()
    rows = [("stan-broker -v, whole command", statistics.median(starts.pop("stan-broker -v")), None, "")]
    for name, seconds in starts.items():
        memory = idle[name]
        target = verdict(f"≤ {_MEMORY_GOAL} MiB", memory <= _MEMORY_GOAL)
        rows.append((f"{name}: until it is ready", statistics.median(seconds), f"{memory:.0f}", target))
    for store in ("FILE", "MEMORY"):
        with broker(options.place, STORES[store]) as server:
            most = []
            for _ in range(4):
                load("publish", server.port, server.pid, count=options.count // 4)
                most.append(f"{server.memory():.0f}")
            rows.append((f"{store}: after 1 to 4 quarters of {options.count:,} messages", None, ", ".join(most), ""))
    return table(("process", "s", "MiB", "target"), rows)


SECTIONS: dict[str, Callable[[Options], str]] = {
    "broker-publish": publishing,
    "broker-clients": clients,
    "broker-growth": growth,
    "broker-delivery": delivery,
    "broker-core": core,
    "broker-jetstream": jetstream,
    "broker-streams": streams,
    "broker-start": start,
    "broker-innocent": innocent,
    "broker-requests": requests,
    "broker-process": process,
}
