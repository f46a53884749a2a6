"""Opening an existing store, with the repairs that the original makes at its start (filestore.md section 7).

`stantools.inspection.forecast` computes what the original would do, to the byte and to the line of its log. This
module makes the planned changes, logs the lines, and turns the recovered state into stores that can continue.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from broker.log import STREAMING
from broker.stores.file.file_messages import FoundSlices
from broker.stores.interface import DamagedStoreError, StorageError
from broker.stores.store_options import FileOptions
from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import CurrentUser, ServerOptions
from stantools.inspection.forecast.channel import RecoveredChannel
from stantools.inspection.forecast.recover import recover
from stantools.inspection.forecast.slices import RecoveredSlice, RecoveryContext
from stantools.recovery.changes import carry_out
from stantools.store.clientlog import ClientsState
from stantools.store.directory import WITNESS_FILE, Datastore, open_datastore
from stantools.store.durable import unwritable
from stantools.store.indexes import SliceIndex
from stantools.store.limits import UNLIMITED, StoreLimits
from stantools.store.mapping import mapped
from stantools.store.serverinfo import read_server_info
from stantools.store.slice_output import index_size
from stantools.store.slicestate import SliceState
from stantools.store.sublog import SubsState

#: The release whose rules apply: unlike 0.23.2 it does not take a store that lost server.dat for an empty one.
VERSION = "0.25.6"

_LINE = re.compile(r"\[(INF|WRN|ERR)\] STREAM: (.*)", re.DOTALL)
_LEVELS = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR}
#: lines of the server's own start, which the server logs itself
_SERVER_LINES = re.compile(r"Recovering the state\.\.\.|No recovered state|Recovered \d+ channel\(s\)")


@dataclass
class RecoveredFiles:
    name: bytes
    slices: FoundSlices
    subs: SubsState  #: content of its subs.dat


@dataclass
class RecoveredDirectory:
    """The content of a directory."""

    server: pb.ServerInfo | None = None  #: identity of the server; None for an empty store
    clients: ClientsState = field(default_factory=ClientsState)  #: content of clients.dat
    channels: list[RecoveredFiles] = field(default_factory=list)  #: by name


def recover_directory(options: FileOptions, crc: Crc, cluster_id: bytes | None) -> RecoveredDirectory:
    """Opens a store, repairs it as the original does, and returns its content.

    Raises StorageError with the original's error if it would not start either, after the changes that it makes then.
    Without a `cluster_id` the stored one is used.
    """
    root = options.directory
    try:
        store = _list_directory(root)
        if cluster_id is None:
            cluster_id = _cluster_id(store, crc)
        server = ServerOptions(
            version=VERSION,
            crc=crc,
            limits=StoreLimits(0, UNLIMITED),
            cluster_id=os.fsdecode(cluster_id),
            access=CurrentUser(),
            workers=options.parallel_recovery,
        )
        recovery = RecoveryContext(root, server, CurrentUser(), options.truncate_bad_eof, {}, drop_begun=True)
        start = recover(recovery, store)
        for line in start.forecast.log:
            match = _LINE.fullmatch(line)
            if match and not _SERVER_LINES.fullmatch(match[2]):
                STREAMING.log(_LEVELS[match[1]], "%s", match[2])
        for change in start.forecast.changes.values():
            carry_out(root, change, crc)
        if not start.forecast.starts:
            problem = start.forecast.error or "the store cannot be recovered"
            if "does not match recovered value" in problem or "too many" in problem:
                # A different cluster id or a reached limit is no damage.
                raise StorageError(problem)
            raise DamagedStoreError(problem, root)
        if not start.forecast.recovered:
            return RecoveredDirectory()
        clients = ClientsState(clients=start.forecast.clients)
        return RecoveredDirectory(
            start.forecast.server_info, clients, [_channel(root, each) for each in start.channels]
        )
    except OSError as error:
        raise StorageError(unwritable(error).message) from error
    except StorageError:
        raise
    except StantoolsError as error:
        raise StorageError(error.message) from error


def _list_directory(root: Path) -> Datastore:
    """Lists a directory, even one without a file of a store."""
    try:
        return open_datastore(root)
    except StoreUnreadableError:
        # It has no files of a store, but its directories are channels all the same.
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return Datastore(root, channel_names=sorted(names, key=os.fsencode), witness=(root / WITNESS_FILE).exists())


def _cluster_id(store: Datastore, crc: Crc) -> bytes:
    if store.server is not None and stat.S_ISREG(store.server.stat().st_mode):
        with mapped(store.server) as buffer:
            info = read_server_info(buffer, crc).info
        if info is not None:
            return info.cluster_id
    return b"test-cluster"


def _channel(root: Path, found: RecoveredChannel) -> RecoveredFiles:
    directory = root / found.name
    slices, odd = [], {}
    current = None
    for each in found.slices:
        state, end = _state(directory, each)
        slices.append(state)
        if each.data.name == f"msgs.{each.number}.dat":
            # Bytes after the last indexed message stay, and no message is appended to them: they may be the only
            # remains of messages whose index records were lost.
            index = directory / f"msgs.{each.number}.idx"
            whole = end == state.data_size and index.stat().st_size == index_size(state.count)
            current = state if whole else None
        else:
            odd[each.number] = each.data
            current = None
    number = max((each.number for each in slices), default=0)
    if current is None:
        number = max(number, _used_numbers(directory))
    layout = FoundSlices(slices, current, number, found.totals.last, odd)
    return RecoveredFiles(found.raw_name, layout, found.subs)


def _state(directory: Path, found: RecoveredSlice) -> tuple[SliceState, int]:
    """Returns the state of a slice for the writer, and the end of its last record."""
    descriptor = os.open(directory / f"msgs.{found.number}.idx", os.O_RDONLY | os.O_CLOEXEC)
    try:
        index = SliceIndex(lambda offset, size: os.pread(descriptor, size, offset), found.rows)
        begin, last = index[0].timestamp, index[-1]
    finally:
        os.close(descriptor)
    state = SliceState(
        found.number, found.first, found.last, begin, last.timestamp, found.rows, found.bytes, found.data_end
    )  # fmt: skip
    return state, last.end


def _used_numbers(directory: Path) -> int:
    """Returns the highest number of a data file that is not empty."""
    highest = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            match = re.fullmatch(r"msgs\.([0-9]{1,18})\.dat", entry.name)
            if match and entry.is_file() and entry.stat().st_size > FILE_HEADER_SIZE:
                highest = max(highest, int(match[1]))
    return highest
