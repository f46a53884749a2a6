"""A store that a server is writing: what is appended while it is read is no damage, and nothing of it is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.format.proto import store_pb2 as pb
from stantools.migration.followed_store import FollowedStore
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.source import SourceOptions
from stantools.store import growing_slice, mapping
from stantools.store.directory import open_datastore
from stantools.store.limits import SliceLimits
from stantools.store.logwriter import SubsLog
from stantools.store.storewriter import StoreWriter
from tests.cli.conftest import Run
from tests.pipeline.tables.followed import CRC, Server

DURABLE = pb.SubState(
    id=1,
    client_id=b"worker",
    inbox=b"_INBOX.a",
    ack_inbox=b"_INBOX.b",
    max_in_flight=10,
    ack_wait_in_secs=30,
    durable_name=b"worker",
    is_durable=True,
    is_closed=True,
)


class Writer:
    """A server that stores a message, sends it to a durable and gets its ack whenever a file of its store is opened."""

    def __init__(self, root: Path, limits: SliceLimits, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server(root, limits=limits)
        StoreWriter(root, CRC).write_clients([])
        self.log = SubsLog(self.server.directory, root, CRC)
        self.log.new(DURABLE)
        for _ in range(30):
            self.publish()
        self.opened = 0
        for module in (mapping, growing_slice):
            monkeypatch.setattr(module, "open_regular", self._before(mapping.open_regular))

    def publish(self) -> None:
        self.server.publish()
        self.log.sent(1, [self.server.sequence])
        self.log.acked(1, [self.server.sequence])
        self.log.write_out()

    def _before(self, function: Callable[..., object]) -> Callable[..., object]:
        def opened(path: Path | str) -> object:
            self.opened += 1
            self.publish()
            return function(path)

        return opened


@pytest.fixture(params=[8, 1000], ids=["slices begin", "one slice grows"])
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Writer:
    return Writer(tmp_path / "store", SliceLimits(request.param, 0), monkeypatch)


@pytest.mark.parametrize(
    "words",
    [("salvage", "store", "--out", "new", "--dry-run"), ("migrate", "plan", "store", "--out", "backup", "--plan", "-")],
    ids=lambda words: words[0],
)
def test_nothing_is_missing(
    writer: Writer, run: Run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.code == 0, done.out + done.err
    assert writer.opened > 3


def test_nothing_is_missing_for_doctor(writer: Writer, run: Run) -> None:
    found = run("doctor", writer.server.root, "-o", "json").json()
    assert found["state"] in ("healthy", "flawed"), found
    assert found["messages"]["missing"] == 0, found
    assert found["starts"][0]["harmless"], found


def test_nothing_is_missing_for_verify(writer: Writer, run: Run) -> None:
    found = run("verify", writer.server.root, "-o", "json").json()
    (channel,) = found["channels"]
    assert not channel["missing"]
    assert not channel["damaged"]
    # A message that came after its index was read is in the data file only.
    assert {each["code"] for each in found["findings"]} <= {"index-orphans"}, found


def test_nothing_is_missing_when_it_is_followed(writer: Writer) -> None:
    store = open_datastore(writer.server.root)
    followed = FollowedStore(store, SourceOptions(), PlanOptions())
    source = followed.first()
    assert not followed.plan(source).lossy
    (channel,) = source.channels
    assert 30 < channel.last <= writer.server.sequence
