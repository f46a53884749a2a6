"""What all measurements of a migration share: a server, a connection, stores that are ready to be migrated."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from measure import Series, race, reread
from natsserver import Server, running
from stores import all_files

from stantools.migration.journal import Journal, StreamResult
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import PreparedStream, prepare
from stantools.migration.server.restore import restore
from stantools.migration.source import open_source
from stantools.migration.targets.stream_load import ApplyOptions, apply_streams
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.store.directory import open_datastore

_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        place: Where data is written.
        small: Messages of 128 bytes.
        large: Messages of 1 KiB.
        rounds: Rounds of a race.
        streams: Streams in the table of many small ones.
        big_bytes: Sizes of the stores for which memory is measured.
    """

    place: Path
    small: int
    large: int
    rounds: int
    streams: int
    big_bytes: tuple[int, ...]

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Makes a new directory for the length of the `with` block."""
        with tempfile.TemporaryDirectory(dir=self.place, prefix="part-") as path:
            yield Path(path)


class Bench:
    """A server, and a connection to it that stays open. A context manager.

    Args:
        place: For the server's streams and for journals.

    Attributes:
        server: The server.
        js: Our connection.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running = running(place / "server")
        self._runner = asyncio.Runner()
        self._journals = 0
        self.server: Server
        self.js: JetStream

    def __enter__(self) -> Bench:
        self.server = self._running.__enter__()
        self._connection = connect(ConnectOptions(servers=(self.server.url,)))
        self.js = JetStream(self.run(self._connection.__aenter__()))
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self._connection.__aexit__(None, None, None))
        self._runner.close()
        self._running.__exit__(None, None, None)

    def run(self, work: Awaitable[_T]) -> _T:
        """Waits for something."""

        async def wait() -> _T:
            return await work

        return self._runner.run(wait())

    def clear(self) -> None:
        """Deletes all streams and waits until the server and the disk are at rest."""
        for name in self.run(self.js.stream_names()):
            self.run(self.js.delete_stream(name))
        self.settle()

    def settle(self) -> None:
        """Waits until the server and the disk are at rest."""
        os.sync()
        self.server.rest()

    def race(
        self, ways: dict[str, Callable[[], object]], rounds: int, store: Path, *, clear: bool = True
    ) -> dict[str, Series]:
        """Runs every way once a round, each on a server without streams unless they are to be kept."""

        def before() -> None:
            if clear:
                self.clear()
            else:
                self.settle()
            reread(all_files(store))

        results = race(ways, rounds, before=before, server=self.server.processor)
        if clear:
            self.clear()
        return results

    def restore(self, stream: PreparedStream) -> None:
        """Builds and restores a stream: from the request to the server's last answer, consumers included."""
        archive = stream.archive(stream.plan.loading_config)
        self.send(stream, stream.pieces(archive))

    def send(self, stream: PreparedStream, pieces: Iterator[memoryview] | list[bytes]) -> None:
        """Restores a stream from pieces of an archive."""
        plan = stream.plan
        last = stream.source.last
        state = {
            "messages": stream.source.count,
            "bytes": plan.bytes,
            "first_seq": stream.source.first,
            "last_seq": last,
            "consumer_count": len(plan.consumers),
        }
        # What the server has to report is compared in `apply`; here only its last sequence is.
        self.run(restore(self.js, plan.name, plan.loading_config, state, pieces, limits_apply=True))

    def apply(self, streams: list[PreparedStream], *, prove: bool, parallel: int = 2) -> list[StreamResult]:
        """Does what `stantools migrate apply` does, without its start.

        Raises:
            RuntimeError: It did not do it.
        """
        self._journals += 1
        plan = self._place / f"{self._journals}.yaml"
        with Journal(plan, "bench", self.server.url) as journal:
            options = ApplyOptions(prove=prove, parallel=parallel)
            results = self.run(apply_streams(self.js, streams, journal, options))
        for result in results:
            if not result.good:
                raise RuntimeError(f"{result.stream}: {result.error or result.findings}")
        return results


def prepared(store: Path) -> list[PreparedStream]:
    """Reads and plans a store."""
    source = open_source(open_datastore(store))
    return prepare(make_plan(source), source)


def remove(path: Path) -> None:
    """Removes a directory, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
