"""A compressed file as a stream of bytes that is read forwards, in any number of frames.

Reading is bounded: a call returns what was asked for at most, and a decompressor may take no more than `MEMORY`. A
stream that is cut or damaged ends where it cannot be continued, and `cut` says why.
"""

from __future__ import annotations

import bz2
import importlib.util
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from stantools.errors import StantoolsError, StoreUnreadableError, readable
from stantools.install_hints import install_command

#: bytes that a decompressor may keep: what xz -9 and zstd --ultra --long=27 need
MEMORY: Final = 192 << 20
_READ: Final = 1 << 18


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MEMORY)


#: the formats by name, each with what decompresses one frame; zstd has a package of its own
COMPRESSIONS: Final[dict[str, Callable[[], Any] | None]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": _xz,
    "zstd": None,
}


def check_available(path: Path, compression: str) -> None:
    """Raises `StantoolsError` if a package for a compression is missing."""
    if compression == "zstd" and importlib.util.find_spec("zstandard") is None:
        raise StantoolsError(f"{path}: archives with zstd need zstandard", install_command("zstandard"))


class Decompressed:
    """The content of a compressed file."""

    def __init__(self, path: Path, compression: str) -> None:
        check_available(path, compression)
        with readable(path):
            self._file = path.open("rb")
        self._path = path
        self._new: Callable[[], _Decompressor] | None = COMPRESSIONS[compression]
        self._zstd: Any = None
        if self._new is None:
            import zstandard

            limited = zstandard.ZstdDecompressor(max_window_size=MEMORY)
            self._zstd = limited.stream_reader(self._file, read_across_frames=True)
        self._frame: _Decompressor | None = None
        self._rest = b""
        self._frames = 0
        self.cut = ""  #: reason why the stream ends early

    def __enter__(self) -> Decompressed:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """Returns the next bytes, fewer than `size` only at the end."""
        parts: list[bytes] = []
        while size > 0 and (part := self._some(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, size: int) -> bytes:
        if self.cut:
            return b""
        try:
            return self._zstd.read(size) if self._zstd else self._of_frames(size)
        except OSError as problem:
            if problem.errno is not None:  # else it is bz2's word for damaged data
                raise StoreUnreadableError(f"{self._path}: cannot be read: {problem.strerror}") from problem
            self.cut = str(problem)
        except (EOFError, zlib.error, lzma.LZMAError) as problem:
            self.cut = str(problem)
        except Exception as problem:
            if type(problem).__name__ != "ZstdError":
                raise
            self.cut = str(problem)
        return b""

    def _of_frames(self, size: int) -> bytes:
        assert self._new
        while True:
            if self._frame is None or self._frame.eof:
                self._rest = (self._frame.unused_data if self._frame else b"") or self._file.read(_READ)
                if not self._rest.strip(b"\0") and self._frames:
                    return b""  # padding may follow the last frame
                if not self._rest:
                    raise EOFError("it is empty")
                self._frame, self._frames = self._new(), self._frames + 1
            elif self._frame.needs_input and not self._rest:
                self._rest = self._file.read(_READ)
                if not self._rest:
                    raise EOFError("the compressed data ends early")
            data = self._frame.decompress(self._rest, size)
            self._rest = b""
            if data:
                return data
