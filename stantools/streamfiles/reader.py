"""Reading stream archives as untrusted input: every hash and size is checked, memory is bounded.

Reads the archives of `writer` and the stream backups of servers of the first archive format, as far as their
compression is supported (see `framing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from stantools.streamfiles import highwayhash, meta
from stantools.streamfiles.framing import ByteSource, TarFile, read_files, unframe
from stantools.streamfiles.layout import ArchiveError, RecordColumns, RecordFlaw
from stantools.streamfiles.meta import ArchiveState, ConsumerState, StreamTally, decode_consumer
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.writer import ConsumerEntry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BLOCK: Final = re.compile(r"msgs/([1-9][0-9]{0,9})\.blk")
_CONSUMER: Final = re.compile(r"obs/([^/]+)/(meta\.inf|meta\.sum|o\.dat)")
_UNICODE: Final = re.compile(r"[^\ud800-\udfff]+", re.DOTALL)
#: optional files that servers add
_EXTRA: Final = re.compile(r"msgs/(index\.db|[0-9]+\.(idx|fss)|thw\.db|sched\.db)")
#: total bytes of all consumers, which are kept until the end
_MAX_CONSUMERS: Final = 256 << 20
_ROWS: Final = 16384
_FLAWS: Final = {
    RecordFlaw.CUT: "ends within a record",
    RecordFlaw.BAD_LENGTH: "has a record with impossible sizes",
    RecordFlaw.BAD_HASH: "has a record whose hash does not match",
}


class StreamReader:
    """Reads the files of a stream once, in the order of an archive; `name` identifies their place in messages."""

    def __init__(self, files: Iterator[TarFile], name: str) -> None:
        self._name = name
        self._files = files
        self._tally = StreamTally()
        self.block = 0  #: number of the block that is being read
        self._last_seq = self._consumer_bytes = 0
        self._metas: dict[str, dict[str, bytes]] = {}
        inf, checksum = self._next("meta.inf"), self._next("meta.sum")
        self.config = self._json(inf)  #: its `meta.inf`
        stream = self.config.get("name")
        if not isinstance(stream, str) or not stream or not _UNICODE.fullmatch(stream):
            raise ArchiveError(f"{name}: meta.inf has no name of a stream")
        self.stream = stream
        self._check_sum(inf, checksum, highwayhash.stream_key(self.stream))
        self.consumers: list[ConsumerEntry] = []  #: its consumers; complete after all records

    def records(self) -> Iterator[RecordBatch]:
        """Reads all records, then the consumers; ArchiveError if the archive is damaged or incomplete."""
        columns = RecordColumns(_ROWS)
        for file in self._files:
            if match := _BLOCK.fullmatch(file.name):
                yield from self._records(int(match[1]), file, columns)
            elif match := _CONSUMER.fullmatch(file.name):
                self._add_consumer_file(match[1], match[2], file)
            elif not _EXTRA.fullmatch(file.name):
                raise ArchiveError(f"{self._name}: {file.name} does not belong into an archive")
        self.consumers = [self._consumer(name, files) for name, files in self._metas.items()]

    @property
    def state(self) -> ArchiveState:
        """The state of the stream; complete after all records."""
        return self._tally.state(self._last_seq)

    def _records(self, index: int, file: TarFile, columns: RecordColumns) -> Iterator[RecordBatch]:
        if index <= self.block:
            raise ArchiveError(f"{self._name}: {file.name} comes after block {self.block}")
        self.block = index
        key = highwayhash.block_key(self.stream, index)
        buffer = memoryview(file.content)
        position, flaw = 0, RecordFlaw.FULL
        while flaw is RecordFlaw.FULL:
            batch, position, flaw = RecordBatch.read(buffer, position, key, columns)
            if len(batch):
                self._count(batch, file.name)
                yield batch
        if flaw is not RecordFlaw.NONE:
            raise ArchiveError(f"{self._name}: {file.name} {_FLAWS[flaw]} at byte {position}")

    def _count(self, batch: RecordBatch, name: str) -> None:
        numbers = batch.sequence
        if int(numbers[0]) <= self._last_seq or bool((numbers[1:] <= numbers[:-1]).any()):
            raise ArchiveError(f"{self._name}: the sequences in {name} do not rise")
        self._last_seq = int(numbers[-1])
        live = batch.messages
        self._tally.add(live.sequence, live.timestamp, int(live.length.sum()))

    def _add_consumer_file(self, consumer: str, name: str, file: TarFile) -> None:
        files = self._metas.setdefault(consumer, {})
        if name in files:
            raise ArchiveError(f"{self._name}: {file.name} occurs twice")
        self._consumer_bytes += len(file.content)
        if self._consumer_bytes > _MAX_CONSUMERS:
            raise ArchiveError(f"{self._name}: its consumers have more than {_MAX_CONSUMERS} bytes")
        files[name] = bytes(file.content)

    def _consumer(self, name: str, files: dict[str, bytes]) -> ConsumerEntry:
        for needed in ("meta.inf", "meta.sum"):
            if needed not in files:
                raise ArchiveError(f"{self._name}: obs/{name}/{needed} is missing")
        inf = TarFile(f"obs/{name}/meta.inf", bytearray(files["meta.inf"]))
        checksum = TarFile(f"obs/{name}/meta.sum", bytearray(files["meta.sum"]))
        config = self._json(inf)
        self._check_sum(inf, checksum, highwayhash.consumer_key(self.stream, name))
        state: ConsumerState | None = None
        if "o.dat" in files:
            try:
                state = decode_consumer(files["o.dat"])
            except ArchiveError as problem:
                raise ArchiveError(f"{self._name}: obs/{name}/o.dat: {problem.message}") from problem
        return ConsumerEntry(name, config, state)

    def _next(self, name: str) -> TarFile:
        file = next(self._files, None)
        if file is None or file.name != name:
            found = "nothing" if file is None else file.name
            raise ArchiveError(f"{self._name}: {found} is where {name} should be: this is not a stream archive")
        return file

    def _json(self, file: TarFile) -> dict[str, Any]:
        try:
            value = json.loads(file.content)
        except (ValueError, RecursionError) as problem:
            raise ArchiveError(f"{self._name}: {file.name} is not JSON: {problem}") from problem
        if not isinstance(value, dict):
            raise ArchiveError(f"{self._name}: {file.name} is not a JSON object")
        return value

    def _check_sum(self, file: TarFile, checksum: TarFile, key: bytes) -> None:
        if checksum.content != meta.meta_sum(file.content, key):
            raise ArchiveError(f"{self._name}: {checksum.name} does not belong to {file.name} of this stream")


class ArchiveReader(StreamReader):
    """Reads an archive once, from framed bytes in pieces of any size; `name` identifies them in messages."""

    def __init__(self, pieces: Iterable[ReadableBuffer], name: str = "the archive") -> None:
        super().__init__(_unpacked(pieces, name), name)


def _unpacked(pieces: Iterable[ReadableBuffer], name: str) -> Iterator[TarFile]:
    pull = ByteSource(iter(unframe(pieces, name)), f"{name}, unpacked,")
    yield from read_files(pull)
    if any(any(piece) for piece in pull.rest()):
        raise ArchiveError(f"{name}: bytes follow the end of the tar")
