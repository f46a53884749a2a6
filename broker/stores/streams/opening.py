"""Reads a stream's directory: blocks, and the indexes that real servers leave (jetstream-server.md section 20).

Some of what is gone, only an index knows of: `msgs/index.db` of servers from 2.10 on, `msgs/N.idx` of older ones. They
are believed if the hash of the last record in them is that of the block.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.blocks import Block, Descriptors
from broker.stores.streams.contents import Contents
from stantools.errors import StantoolsError
from stantools.store.durable import replace_file
from stantools.streamfiles import highway, kernels
from stantools.streamfiles.framing import MAX_FILE_SIZE, unframe
from stantools.streamfiles.indexes import KnownBlock, read_index, read_old_index
from stantools.streamfiles.layout import HASH_SIZE, ArchiveError, Flaw, RecordColumns
from stantools.streamfiles.varints import Numbers

_BLOCK: Final = re.compile(r"([1-9][0-9]{0,9})\.blk")
_LEFT: Final = re.compile(r"\..*|.*\.tmp|[0-9]+\.new|[0-9]+\.key\.tmp")
_INDEX: Final = "index.db"
#: Other files of real servers that say again what is in the blocks.
_OTHERS: Final = re.compile(r"index\.db|thw\.db|sched\.db|[0-9]+\.(idx|fss)")
_ROWS: Final = 65536
_TOMBSTONE: Final = 1
_COMPRESSED: Final = b"cmp\x01"


def open_messages(
    directory: Path, stream: str, files: Descriptors, contents: Contents, blocks: dict[int, Block]
) -> list[int]:
    """Reads the blocks of a stream.

    Args:
        directory: Where they are.
        stream: Name of the stream.
        files: Who has files open.
        contents: Gets the messages.
        blocks: Gets the blocks, by number.

    Returns:
        Sequences of messages that are there and are gone nevertheless, as an index says.

    Raises:
        StorageError: A block cannot be read.
        OSError: The directory cannot be read.
    """
    names = [path.name for path in directory.iterdir()]
    for name in names:
        if _LEFT.fullmatch(name):
            (directory / name).unlink(missing_ok=True)
    graves: dict[int, int] = {}
    tails: dict[int, bytes] = {}
    numbers = sorted(int(found[1]) for found in map(_BLOCK.fullmatch, names) if found)
    for number in numbers:
        block = blocks[number] = Block(directory, stream, number, files)
        data = _content(block)
        _read(block, data, contents, graves)
        tails[number] = data[block.size - HASH_SIZE : block.size]
    for sequence in graves:
        found = contents.locate(sequence)
        if found is not None:
            contents.discard(*found)
    if graves:
        highest = max(graves)
        contents.skip(highest, max(graves[highest], contents.last_time))
    return _forgotten(directory, stream, contents, tails)


def forget_indexes(directory: Path) -> None:
    """Removes the indexes of real servers: they will not be right any more."""
    for path in directory.iterdir():
        if _OTHERS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _content(block: Block) -> bytes:
    size = block.path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise StorageError(f"{block.path} has {size} bytes, more than any block")
    if block.path.with_suffix(".key").exists():
        raise StorageError(f"{block.path} is encrypted by its server", "restore the stream from a backup")
    data = block.path.read_bytes()
    if data.startswith(_COMPRESSED):
        numbers = Numbers(data, len(_COMPRESSED))
        try:
            numbers.take()
            framed = data[numbers.position : -HASH_SIZE]
            data = b"".join(map(bytes, unframe([framed], str(block.path)))) + data[-HASH_SIZE:]
            replace_file(block.path, data)
        except StantoolsError as error:
            raise StorageError(f"{block.path} cannot be decompressed: {error}") from error
    return data


def _read(block: Block, data: bytes, contents: Contents, graves: dict[int, int]) -> None:
    columns = RecordColumns(_ROWS)
    begun = False
    position = 0
    flaw = Flaw.FULL
    while flaw is Flaw.FULL:
        begin = position
        rows, position, flaw = kernels.scan_records(data, position, block.key, columns)
        found = columns.take(rows)
        place = begin
        for sequence, flags, time, size, start, length in zip(
            found.sequence.tolist(),
            found.flags.tolist(),
            found.timestamp.tolist(),
            found.length.tolist(),
            found.subject_start.tolist(),
            found.subject_size.tolist(),
            strict=True,
        ):
            if flags == _TOMBSTONE:
                block.graves.append(sequence)
                graves[sequence] = time
            elif sequence > contents.last:
                contents.skip(sequence if flags else sequence - 1, max(time, contents.last_time))
                if not flags:
                    if not begun:
                        contents.begin(sequence, block.number)
                        begun = True
                    contents.add(sequence, time, data[start : start + length], size, place)
            place += size
    block.size = position
    if flaw is not Flaw.NONE:
        block.damaged = True
        NATS.error("%s: no good record at byte %d; what follows is not read", block.path, position)


def _forgotten(directory: Path, stream: str, contents: Contents, tails: dict[int, bytes]) -> list[int]:
    known: dict[int, KnownBlock] = {}
    begin = 0
    try:
        data = (directory / _INDEX).read_bytes()
        begin, known = read_index(data, highway.stream_key(stream), tails)
    except OSError:
        for number, tail in tails.items():
            try:
                known[number] = read_old_index((directory / f"{number}.idx").read_bytes(), tail)
            except (OSError, ArchiveError):
                continue
    except ArchiveError as problem:
        NATS.warning("%s is not used: %s", directory / _INDEX, problem)
    # An emptied stream of an old server has its last sequence there only.
    contents.skip(max((said.last for said in known.values()), default=0), contents.last_time)
    gone: list[int] = []
    for segment, rows in contents.rows(None):
        said = known.get(segment.block)
        for sequence in (rows + segment.first).tolist():
            if sequence < begin or (
                said is not None and (not said.first <= sequence <= said.last or sequence in said.deleted)
            ):
                gone.append(sequence)
    return gone
