"""Whatever happens to a store that is written: every message comes once, or is reported as gone before it was read."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.pipeline.tables.follow import Limit
from stantools.store.growing_channel import REMOVED, REPLACED
from stantools.store.limits import SliceLimits

from .followed import Reader, Server, cut_to_index

_LIMITS = st.sampled_from([None, None, Limit(bytes=1), Limit(bytes=3000), Limit(rows=2), Limit(files=1)])
_STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("kill"), st.integers(0, 2), st.sampled_from([0, 1, 8, 9, 40]), st.sampled_from(["cut", "new"])),
    st.tuples(st.just("look"), _LIMITS),
    st.tuples(st.just("look"), _LIMITS),
    st.tuples(st.just("catch up"), _LIMITS),
    st.tuples(st.just("restart")),
    st.tuples(st.just("remove"), st.booleans()),
    st.tuples(st.just("interrupted"), st.integers(0, 5)),
    st.tuples(st.just("rewrite")),
)


class History:
    """A server, a reader, and what has to come of it."""

    def __init__(self, folder: Path, limits: SliceLimits, seed: int) -> None:
        self.scratch = folder / "scratch"
        self.server = Server(folder / "store", limits=limits, seed=seed)
        self.reader = Reader(self.server.root)
        self.orphans = False
        #: Numbers of messages whose slices were removed without being read.
        self.missed: set[int] = set()

    def step(self, what: str, *values: object) -> None:
        getattr(self, what.replace(" ", "_"))(*values)

    def publish(self, count: int) -> None:
        self.server.publish(count)

    def kill(self, orphans: int, torn: int, after: str) -> None:
        server = self.server
        if not server.stored or not server.slices():
            return
        server.kill()
        numbers, _ = server.leave(orphans, torn)
        if after == "cut":
            cut_to_index(server.data_file())
            server.start()
        else:
            server.begin_slice()
            server.stored.update(dict.fromkeys(numbers, 0))
            self.orphans = self.orphans or bool(numbers)
            # Only a new slice makes what was left final.
            server.publish(1)

    def look(self, limit: Limit | None) -> None:
        self.reader.look(limit)

    def catch_up(self, limit: Limit | None) -> None:
        self.reader.all(limit)

    def restart(self) -> None:
        self.reader.restart()

    def interrupted(self, count: int) -> None:
        """A batch is planned, and planned again after a restart while the server goes on."""
        reader = self.reader
        reader.follower.next_look = 0.0
        end = reader.follower.latest(reader.at)
        reader.follower.work(reader.at, end)
        if count:
            self.server.publish(count)
        reader.restart()
        reader.take(reader.follower.work(reader.at, end))
        reader.at = end

    def remove(self, archive: bool) -> None:
        server = self.server
        if not archive and len(server.slices()) > 1:
            reader = Reader(server.root)
            reader.at = reader.follower.earliest()
            reader.all()
            before = set(reader.got)
            server.remove_oldest()
            reader = Reader(server.root)
            reader.all()
            self.missed |= (before - set(reader.got)) - set(self.reader.got)
        elif not self.orphans:
            server.remove_oldest(archive=archive)

    def rewrite(self) -> None:
        if not self.orphans and self.server.stored and not list(self.server.directory.glob("*.bak")):
            self.server.rewrite(self.scratch)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leaves out warnings about lost messages."""
    logger = logging.getLogger("stantools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_STEPS, min_size=1, max_size=25),
    st.sampled_from([SliceLimits(4, 0), SliceLimits(10, 0), SliceLimits(0, 4000)]),
    st.integers(0, 1000),
)
def test_every_message_comes_once_or_is_reported(steps, limits, seed):
    with tempfile.TemporaryDirectory() as folder, quiet():
        history = History(Path(folder), limits, seed)
        for step in steps:
            history.step(*step)
        history.reader.all()
        server, reader = history.server, history.reader
        assert len(reader.got) == len(set(reader.got)), "nothing comes twice"
        assert reader.got == sorted(reader.got)
        assert set(reader.got) <= set(server.stored)
        gone = set(server.stored) - set(reader.got)
        assert gone == history.missed
        reported = {lost.status for lost in reader.lost}
        if gone:
            assert reported
        else:
            assert REMOVED not in reported
        if not any(step[0] == "rewrite" for step in steps):
            assert REPLACED not in reported
