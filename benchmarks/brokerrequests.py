"""How long an innocent client waits at most while another one sends requests that are expensive."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokerruns import Options, broker, nats
from measure import REPOSITORY, table, verdict

from tests import servers

_PROGRAM = Path(__file__).with_name("broker") / "streamattack.py"
sys.path.insert(0, str(_PROGRAM.parent))
from streamattack import ATTACKS  # noqa: E402

#: Milliseconds that one client may keep another one waiting, and seconds that an attack may last.
_GOAL = 50
_PATIENCE = 120
#: What a real server does not have, or not here: its monitoring, and streaming.
_OURS_ONLY = ("jsz", "subsz", "connz", "storm")
#: Milliseconds before this was done in slices; more than 15 s where nothing came until then.
_BEFORE = {
    "info": "240",
    "next": "263",
    "last": "260",
    "fifty": "11649",
    "multi": "> 15000",
    "hundred": "> 15000",
    "filters": "> 15000",
    "subjects": "> 15000",
    "sources": "367",
    "republish": "4543",
    "restore": "106",
    "storm": "1900",
}


@contextmanager
def _ours(options: Options) -> Iterator[tuple[int, int]]:
    """Starts a broker; yields its port and that of its monitoring."""
    monitoring = servers.free_port()
    with broker(options.place, ("-st", "memory", "-js", "-m", str(monitoring))) as server:
        yield server.port, monitoring


def _attack(name: str, port: int, monitoring: int = 0) -> dict[str, float] | None:
    command = [sys.executable, str(_PROGRAM), name, "--port", str(port), "--monitoring", str(monitoring)]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.decode(errors='replace')[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def requests(options: Options) -> str:
    """The longest wait of an innocent client during requests that look at much."""
    rows = []
    for name, attack in ATTACKS.items():
        ours, theirs = [], []
        for _ in range(options.rounds):
            with _ours(options) as (port, monitoring):
                ours.append(_attack(name, port, monitoring))
            if name not in _OURS_ONLY:
                with nats(options.place, servers.NEWEST) as (port, _):
                    theirs.append(_attack(name, port))
        waits = [found["longest"] if found else _PATIENCE * 1000.0 for found in ours]
        alone = statistics.median(found["alone"] for found in ours if found)
        longest = statistics.median(waits)
        real = [found["longest"] for found in theirs if found]
        rows.append(
            (
                attack.title,
                _BEFORE.get(name, ""),
                f"{longest:.0f}",
                f"{statistics.median(real):.0f}" if real else "",
                f"{alone:.0f}",
                verdict(f"≤ {_GOAL} ms", longest <= _GOAL),
            )
        )
    headers = (
        "longest wait of an innocent client, ms, during",
        "before",
        "now",
        f"nats-server {servers.NEWEST}",
        "no requests",
        "target",
    )
    return table(headers, rows)
