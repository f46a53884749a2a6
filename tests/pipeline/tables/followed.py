"""A channel that is written, killed, repaired, limited and replaced as servers do it, and a reader that follows it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.pipeline.tables.follow import FollowPart, Limit, TableFollower
from stantools.pipeline.tables.model import FailedRead, SlicePiece, StoreRef
from stantools.pipeline.tables.positions import Offsets
from stantools.store.growing_channel import LostRange
from stantools.store.limits import SliceLimits
from stantools.store.mapping import mapped
from stantools.store.resync import DamagedRange
from stantools.store.serverinfo import encode_server_file, new_server_info
from stantools.store.slice_output import remove_slice
from stantools.store.slice_reader import SliceFile
from stantools.store.slicewriter import SliceWriter, WriteOptions

CRC = Crc(IEEE)


class Server:
    """Writes one channel. Every message has a number of its own as payload, however often its sequence is used."""

    def __init__(self, root: Path, channel: str = "orders", limits: SliceLimits | None = None, seed: int = 0) -> None:
        self.root, self.channel = root, channel
        self.directory = root / channel
        self.directory.mkdir(parents=True, exist_ok=True)
        (root / "server.dat").write_bytes(encode_server_file(new_server_info("test-cluster"), CRC))
        if not (subscriptions := self.directory / "subs.dat").exists():
            subscriptions.write_bytes(FILE_HEADER_BYTES)
        self.name = channel.encode()
        self.limits = limits or SliceLimits(8, 0)
        self.rng = random.Random(seed)
        self.number = 0
        self.clock = 1_795_219_649_000_000_000
        #: What is in the files for good, by number: sequence.
        self.stored: dict[int, int] = {}
        self.sequence = 0
        self.writer: SliceWriter | None = None
        self.start()

    def start(self) -> None:
        """Goes on where the files end."""
        self.writer = SliceWriter.resume(
            self.directory, self.name, CRC, WriteOptions(self.limits, sync=False, first_alone=True)
        )
        self.writer.last_sequence = max(self.writer.last_sequence, self.sequence)

    def begin_slice(self) -> None:
        """Goes on in a new slice, as a server that does not build upon what it cannot vouch for."""
        last = max((int(p.name.split(".")[1]) for p in self.directory.glob("msgs.*.dat")), default=0)
        self.writer = SliceWriter(
            self.directory,
            self.name,
            CRC,
            WriteOptions(self.limits, sync=False, first_alone=True),
            last_number=last,
            last_sequence=self.sequence,
        )

    def messages(self, count: int) -> tuple[list[int], list[int], list[bytes], list[int]]:
        numbers = list(range(self.number + 1, self.number + count + 1))
        self.number += count
        sequences = list(range(self.sequence + 1, self.sequence + count + 1))
        times = []
        for _ in numbers:
            self.clock += self.rng.choice((0, 1, 1000, 10**9))
            times.append(self.clock)
        payloads = [b"%d " % number + b"x" * self.rng.choice((0, 3, 200, 5000)) for number in numbers]
        return sequences, times, payloads, numbers

    def publish(self, count: int = 1, *, flush: bool = True) -> None:
        sequences, times, payloads, numbers = self.messages(count)
        assert self.writer is not None
        self.writer.append(sequences, times, None, payloads)
        self.sequence += count
        self.stored.update(zip(numbers, sequences, strict=True))
        if flush:
            self.writer.flush()

    def kill(self) -> None:
        """Ends in the middle of writing: messages without index records, and a part of one."""
        assert self.writer is not None
        self.writer.abandon()
        self.writer = None

    def data_file(self) -> Path:
        return max(self.directory.glob("msgs.*.dat"), key=lambda path: int(path.name.split(".")[1]))

    def leave(self, orphans: int, torn: int) -> tuple[list[int], int]:
        """Leaves messages without index records, and so many bytes of another, as a killed server does.

        Returns:
            The numbers of the messages, and where the file ended before.
        """
        path = self.data_file()
        end = path.stat().st_size
        sequences, times, payloads, numbers = self.messages(orphans + 1)
        records, sizes = kernels.encode_messages(
            self.name, np.array(sequences, np.uint64), np.array(times, np.int64), None, payloads, CRC
        )
        last = int(sizes[-1]) + RECORD_HEADER_SIZE
        keep = len(records) - last + min(torn, last - 1)
        with path.open("ab") as file:
            file.write(bytes(memoryview(records)[:keep]))
        return numbers[:-1], end

    def append_raw(self, count: int) -> None:
        """Appends behind whatever is there, as the original does when its index is good."""
        path = self.data_file()
        end = path.stat().st_size
        sequences, times, payloads, numbers = self.messages(count)
        sequence, timestamp = np.array(sequences, np.uint64), np.array(times, np.int64)
        records, sizes = kernels.encode_messages(self.name, sequence, timestamp, None, payloads, CRC)
        lengths = sizes.astype(np.int64) + RECORD_HEADER_SIZE
        offsets = end + np.cumsum(lengths) - lengths
        with path.open("ab") as file:
            file.write(bytes(records))
        with path.with_suffix(".idx").open("ab") as file:
            file.write(kernels.encode_index(sequence, offsets, timestamp, sizes, CRC))
        self.sequence += count
        self.stored.update(zip(numbers, sequences, strict=True))

    def slices(self) -> list[int]:
        return sorted(int(p.name.split(".")[1]) for p in self.directory.glob("msgs.*.dat"))

    def remove_oldest(self, *, archive: bool = False) -> bool:
        """Removes the oldest slice, unless it is the only one."""
        slices = self.slices()
        if len(slices) > 1:
            remove_slice(self.directory, slices[0], archive=archive)
        return len(slices) > 1

    def rewrite(self, scratch: Path) -> None:
        """Replaces the channel by a copy in other slices, as a salvage makes it."""
        assert self.writer is not None
        self.writer.close()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        limits = SliceLimits(self.rng.choice((3, 5, 100)), 0)
        with SliceWriter(scratch, self.name, CRC, WriteOptions(limits, sync=False)) as writer:
            for number in self.slices():
                with mapped(self.directory / f"msgs.{number}.dat") as data:
                    for part in SliceFile(data, self.name, CRC).records():
                        if not isinstance(part, DamagedRange):
                            keep = part.sequence > writer.last_sequence
                            assert keep.all()
                            writer.append_records(part)
        old = scratch.with_name(scratch.name + ".old")
        self.directory.rename(old)
        scratch.rename(self.directory)
        shutil.rmtree(old)
        self.start()


class Reader:
    """Follows a store, and remembers what it got.

    Attributes:
        got: Numbers of the messages, in order.
        lost: What was reported as not readable any more.
        damaged: Damaged ranges.
    """

    def __init__(self, *roots: Path, archived: bool = False, offsets: Offsets | None = None) -> None:
        self.roots = roots
        self.archived = archived
        self.got: list[int] = []
        self.rows: list[tuple[str, str, int, int]] = []
        self.lost: list[LostRange] = []
        self.unreadable: list[FailedRead] = []
        self.damaged: list[DamagedRange] = []
        self.batches = 0
        self.restart()
        self.at = self.follower.earliest() if offsets is None else offsets

    def restart(self) -> None:
        """Begins anew with nothing but the offset."""
        stores = [StoreRef(str(root), IEEE) for root in self.roots]
        self.follower = TableFollower(lambda: (stores, ()), archived=self.archived)
        if hasattr(self, "at"):
            self.at = Offsets.from_json(json.loads(json.dumps(self.at.to_json())))

    def look(self, limit: Limit | None = None) -> bool:
        """Reads one batch. Returns whether there was one."""
        self.follower.next_look = 0.0
        end = self.follower.latest(self.at, limit)
        assert Offsets.from_json(json.loads(json.dumps(end.to_json()))) == end
        if end == self.at:
            return False
        self.take(self.follower.work(self.at, end))
        self.at = end
        self.batches += 1
        return True

    def all(self, limit: Limit | None = None) -> None:
        """Reads until nothing is left."""
        for _ in range(10_000):
            if not self.look(limit):
                return
        raise AssertionError("it never ends")

    def take(self, work: Sequence[FollowPart]) -> None:
        for each in work:
            if isinstance(each, LostRange):
                self.lost.append(each)
            elif isinstance(each, FailedRead):
                self.unreadable.append(each)
            else:
                self.read(each)

    def read(self, piece: SlicePiece) -> None:
        ref = piece.slice
        assert ref.data_size == piece.end
        assert piece.start < piece.end
        with mapped(Path(ref.data)) as data:
            for part in SliceFile(data[: piece.end], os.fsencode(ref.channel), CRC).records(piece.start):
                if isinstance(part, DamagedRange):
                    self.damaged.append(part)
                    continue
                for start, sequence, offset in zip(
                    part.data_start.tolist(), part.sequence.tolist(), part.offset.tolist(), strict=True
                ):
                    self.got.append(int(bytes(data[start : start + 20]).split(b" ")[0]))
                    self.rows.append((ref.store.root, ref.channel, sequence, offset))


def cut_to_index(path: Path) -> int:
    """Cuts a data file behind the last message of its index. Returns its size."""
    content = path.with_suffix(".idx").read_bytes()
    end = FILE_HEADER_SIZE
    if len(content) > FILE_HEADER_SIZE:
        _, offset, _, size, _ = INDEX_RECORD.unpack(content[-INDEX_RECORD_SIZE:])
        end = offset + RECORD_HEADER_SIZE + size
    os.truncate(path, end)
    return end
