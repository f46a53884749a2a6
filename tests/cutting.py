"""Files that get shorter while they are read: the end of a file is cut off as soon as the file is mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store import mapping
from stantools.store.limits import SliceLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter
from tests.durables import durables

DATA, INDEX, SUBS, CLIENTS = "foo/msgs.1.dat", "foo/msgs.1.idx", "foo/subs.dat", "clients.dat"
#: Bytes that are left.
LEFT = 20_000
#: Messages, clients and subscriptions: so many that every file is mapped, and longer than what is left.
COUNT = 5000

#: Loaded by every Python process that is started with its directory in PYTHONPATH, workers included.
_SITE = """
import os
if os.environ.get("CUT"):
    from tests.cutting import cut_when_mapped

    cut_when_mapped(os.environ["CUT"])
"""


def cut_when_mapped(cut: str) -> None:
    """From now on the file loses its end right after this process has mapped it, before anything of it is read."""
    open_file = mapping.open_mapped

    def cutting(path: Path, *seen: Any) -> Any:
        content = open_file(path, *seen)
        if os.path.realpath(path) == cut and not isinstance(content, bytes):
            os.truncate(path, LEFT)
        return content

    mapping.open_mapped = cutting


def environment(folder: Path, cut: Path) -> dict[str, str]:
    """Returns what lets all processes cut the file, whichever of them maps it."""
    (folder / "sitecustomize.py").write_text(_SITE)
    paths = (str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUT": os.path.realpath(cut)}


def write_store(place: Path) -> None:
    """Writes a store with the channel foo."""
    place.mkdir()
    writer = StoreWriter(place, Crc())
    writer.write_server(new_server_info("test-cluster"))
    writer.write_clients(
        pb.ClientInfo(id=b"client-%d" % n, hb_inbox=b"_INBOX.%022d" % n, conn_id=b"%022d" % n, protocol=1)
        for n in range(COUNT)
    )
    writer.write_subs(b"foo", ((state, [9, 10]) for state in durables(COUNT)))
    everything = range(1, COUNT + 1)
    with writer.slices(b"foo", SliceLimits()) as slices:
        slices.append(everything, everything, [b""] * COUNT, [b"x" * 200] * COUNT)
