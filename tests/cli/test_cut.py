"""Files that get shorter while a verb has them mapped: exit code 3 and a message, in every verb and every worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import SliceLimits
from stantools.store.storewriter import StoreWriter

#: Loaded by every Python process that is started with this directory in PYTHONPATH: right after the file in CUT is
#: mapped, its end is cut off. In a worker as well, and before anything of it is read.
_CUTTER = """
import os
if os.environ.get("CUT"):
    from stantools.store import mapping

    open_file = mapping._open

    def cutting(path):
        content = open_file(path)
        if os.path.realpath(path) == os.environ["CUT"] and not isinstance(content, bytes):
            os.truncate(path, 20_000)
        return content

    mapping._open = cutting
"""

COUNT = 5000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose files are all large enough to be mapped."""
    place = tmp_path_factory.mktemp("whole") / "store"
    place.mkdir()
    writer = StoreWriter(place, Crc())
    names = ("discovery", "publish", "subscribe", "unsubscribe", "close", "sub_close")
    inboxes = {name: b"_STAN." + name.encode() for name in names}
    writer.write_server(pb.ServerInfo(cluster_id=b"test-cluster", **inboxes))
    writer.write_clients(
        pb.ClientInfo(id=b"client-%d" % n, hb_inbox=b"_INBOX.%022d" % n, conn_id=b"%022d" % n, protocol=1)
        for n in range(COUNT)
    )
    states = (
        pb.SubState(
            id=n,
            client_id=b"client-%d" % n,
            inbox=b"_INBOX.%022d" % n,
            ack_inbox=b"_INBOX.A%021d" % n,
            max_in_flight=1024,
            ack_wait_in_secs=30,
            durable_name=b"durable-%d" % n,
            last_sent=10,
            is_durable=True,
            is_closed=True,
        )
        for n in range(1, COUNT + 1)
    )
    writer.write_subs(b"foo", ((state, [9, 10]) for state in states))
    everything = range(1, COUNT + 1)
    with writer.slices(b"foo", SliceLimits()) as slices:
        slices.append(everything, everything, [b""] * COUNT, [b"x" * 200] * COUNT)
    return place


@pytest.fixture
def cutter(tmp_path: Path) -> Path:
    place = tmp_path / "cutter"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_CUTTER)
    return place


def stantools(
    cutter: Path, cut: Path, *arguments: object, exit_code: int = 3, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a verb that finds `cut` shorter than it was, and says so."""
    path = os.pathsep.join(filter(None, (str(cutter), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "stantools", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path, "CUT": str(cut.resolve())} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert cut.stat().st_size == 20_000, (done.stdout, done.stderr)
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    said = " ".join(done.stderr.replace("\\n", " ").split())
    assert f"{cut.name}: was cut while it was read: it had" in said
    assert "now has 20000; expected was a file that only grows" in said
    assert "stop what writes to the store" in said
    assert "Traceback" not in done.stderr
    return done


DATA, INDEX, SUBS, CLIENTS = "foo/msgs.1.dat", "foo/msgs.1.idx", "foo/subs.dat", "clients.dat"


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ("info STORE", SUBS),
        ("info STORE", CLIENTS),
        ("info STORE", INDEX),
        ("messages STORE foo", DATA),
        ("messages STORE foo --tail 5", INDEX),
        ("subs STORE", SUBS),
        ("clients STORE", CLIENTS),
        ("records STORE/foo/msgs.1.dat", DATA),
        ("records STORE/foo/subs.dat", SUBS),
        ("doctor STORE", DATA),
        ("verify STORE", DATA),
        ("verify STORE", INDEX),
        ("verify STORE", SUBS),
        ("verify STORE", CLIENTS),
        ("forecast STORE", INDEX),
        ("forecast STORE", SUBS),
        ("salvage STORE --out OUT", DATA),
        ("salvage STORE --out OUT", SUBS),
        ("truncate-bad-eof STORE --dry-run", INDEX),
        ("compact STORE --out OUT", DATA),
        ("compact STORE --out OUT", SUBS),
        ("migrate STORE --out OUT --plan PLAN --yes", DATA),
        ("migrate STORE --out OUT --plan PLAN --yes", SUBS),
        ("diff STORE OTHER", DATA),
        ("export STORE --to OUT --format ndjson", DATA),
    ],
)
def test_every_verb(whole: Path, cutter: Path, tmp_path: Path, arguments: str, file: str) -> None:
    store = shutil.copytree(whole, tmp_path / "store")
    names = {
        "STORE": str(store),
        "OTHER": str(whole),
        "OUT": str(tmp_path / "out"),
        "PLAN": str(tmp_path / "plan.yaml"),
    }
    for name, value in names.items():
        arguments = arguments.replace(name, value)
    stantools(cutter, store / file, *arguments.split())
    assert not (tmp_path / "out").exists()
