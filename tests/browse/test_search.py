"""Searching a channel: what is found is what a look at every message finds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.browse.search import Matcher, Searcher, parse_query
from stantools.browse.window import RowWindow, WindowMessage, refine
from stantools.errors import StantoolsError, UsageError
from stantools.format.crc import Crc
from stantools.inspection.survey_jobs import survey_channels
from stantools.store.directory import list_channel, open_datastore
from stantools.store.limits import SliceLimits
from stantools.store.slicewriter import SliceWriter, WriteOptions
from tests.conftest import load_expected

CRC = Crc()
PAYLOADS = (
    b"",
    b"order",
    b"Order 17",
    b"\xde\xad\xbe\xef",
    b"aaa",
    "Zürich".encode(),
    "ZÜRICH".encode(),
    b"x\ny",
    b"\0",
)


def opened(root: Path, payloads: list[bytes], *, indexes: bool = True) -> RowWindow:
    channel = root / "one"
    if not channel.exists():
        channel.mkdir(parents=True)
        with SliceWriter(channel, b"one", CRC, WriteOptions(SliceLimits(7), sync=False)) as writer:
            count = len(payloads)
            replies = [b"reply.to.me" if number % 5 == 4 else b"" for number in range(count)]
            sequences = [number + 1 if number < 9 else number + 4 for number in range(count)]
            writer.append(sequences, range(count), replies, payloads)
    if not indexes:
        for path in channel.glob("*.idx"):
            path.unlink()
    return refine(None, list_channel(channel), CRC)


def matching(window: RowWindow, pattern: re.Pattern[bytes]) -> list[int]:
    found = []
    for number in range(len(window)):
        row = window.row(number)
        if isinstance(row, WindowMessage) and (pattern.search(row.data) or (row.reply and pattern.search(row.reply))):
            found.append(number)
    return found


QUERIES = (
    "order",
    "Order",
    "t:Order",
    "zürich",
    "Zürich",
    "x:de ad",
    "x:00",
    "aa",
    "r:^a+$",
    "r:x.y",
    "r:[0-9]+",
    "reply",
    "one",
)


@pytest.mark.parametrize("indexes", [True, False])
@pytest.mark.parametrize("text", QUERIES)
def test_found(text: str, indexes: bool, tmp_path: Path) -> None:
    window = opened(tmp_path, [PAYLOADS[number % len(PAYLOADS)] for number in range(40)], indexes=indexes)
    query = parse_query(text)
    searcher = Searcher(window, query)
    wanted = matching(window, query.pattern)
    assert list(searcher.matches(0, len(window))) == wanted
    for at in range(len(window) + 1):
        assert searcher.forward(at, len(window)) == next((row for row in wanted if row >= at), None)
        assert searcher.backward(0, at) == next((row for row in reversed(wanted) if row < at), None)
    searcher.close()


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=12) | st.text(max_size=8).map(str.encode), min_size=1, max_size=30),
    needle=st.binary(min_size=1, max_size=3),
)
def test_bytes(payloads: list[bytes], needle: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    window = opened(tmp_path_factory.mktemp("search"), payloads)
    query = parse_query(f"x:{needle.hex()}")
    found = list(Searcher(window, query).matches(0, len(window)))
    assert found == matching(window, query.pattern)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=20))
def test_any_query(text: str) -> None:
    try:
        query = parse_query(text)
    except UsageError as problem:
        assert problem.message
    else:
        query.pattern.search(b"some payload")


def test_no_query() -> None:
    rows: list[str] = ["", "  ", "x:", "x:d", "x:zz", "r:(", "r:[", "r:"]
    for text in rows:
        with pytest.raises(UsageError):
            parse_query(text)
            pytest.fail(f"accepted: {text!r}")


def test_case() -> None:
    assert parse_query("zürich").pattern.search("ZÜRICH".encode())
    assert not parse_query("Zürich").pattern.search("ZÜRICH".encode())


def test_encrypted(golden: Path) -> None:
    files = list_channel(golden / "encrypted_aes" / "datastore" / "enc.foo")
    key = load_expected("encrypted_aes")["options"]["encryption"]["key"].encode()
    query = parse_query("paid")
    plain, decrypted = refine(None, files, CRC), refine(None, files, CRC, key=key)
    assert list(Searcher(plain, query).matches(0, len(plain))) == []
    found = list(Searcher(decrypted, query).matches(0, len(decrypted)))
    assert found == matching(decrypted, query.pattern) != []


def test_a_message_that_is_proven_is_found(golden: Path) -> None:
    root = golden / "dmg_crc_flip_noidx" / "datastore"
    (survey,) = survey_channels(open_datastore(root), ["alpha"])
    window = refine(None, list_channel(root / "alpha"), CRC, survey=survey)
    rows = [window.row(number) for number in range(len(window))]
    (at,) = [n for n, row in enumerate(rows) if isinstance(row, WindowMessage) and row.proven]
    proven = rows[at]
    assert isinstance(proven, WindowMessage)
    searcher = Searcher(window, parse_query(f"x:{proven.data.hex()}"))
    assert searcher.forward(0, len(window)) == searcher.backward(0, len(window)) == at


def test_progress_tells_every_row(tmp_path: Path) -> None:
    window = opened(tmp_path, [b"nothing"] * 40)
    done: list[int] = []
    searcher = Searcher(window, parse_query("absent"))
    assert searcher.forward(5, len(window), done.append) is None
    assert sum(done) == len(window) - 5
    done.clear()
    assert searcher.backward(0, 30, done.append) is None
    assert sum(done) == 30


def test_files_that_are_gone_hold_nothing(tmp_path: Path) -> None:
    window = opened(tmp_path, [b"order"] * 40)
    for path in (tmp_path / "one").iterdir():
        path.unlink()
    assert Searcher(window, parse_query("order")).forward(0, len(window)) is None


class Enough(BaseException):
    """Ends a search, as a cancelled job does."""


def test_a_pattern_that_takes_forever_is_ended(tmp_path: Path) -> None:
    window = opened(tmp_path, [b"aaa", b"a" * 60 + b"!"])
    searcher = Searcher(window, parse_query("r:^(a+)+$"))
    waited: list[int] = []

    def progress(count: int) -> None:
        waited.append(count)
        if len(waited) == 3:
            raise Enough

    with pytest.raises(Enough):
        searcher.forward(0, len(window), progress)
    assert waited == [0, 0, 0]
    searcher.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that matchers start."""
    processes: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return processes


def test_a_matcher_ends_its_process(started: list[subprocess.Popen[bytes]]) -> None:
    matcher = Matcher(re.compile(b"(a+)+$"))
    assert matcher.matching([(b"b",), (b"b", b"a"), (), (b"xa",)]) == [False, True, False, True]
    (process,) = started
    assert process.poll() is None

    def stop(_: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        matcher.matching([(b"a" * 60 + b"!",)], stop)
    assert process.returncode is not None
    assert matcher.matching([(b"a",)]) == [True], "it can be asked again"
    matcher.close()
    matcher.close()


def test_a_matcher_that_is_killed_says_so(started: list[subprocess.Popen[bytes]]) -> None:
    matcher = Matcher(re.compile(b"a"))
    matcher.matching([(b"a",)])
    (process,) = started
    process.kill()
    process.wait()
    with pytest.raises(StantoolsError, match="cannot be matched"):
        matcher.matching([(b"a",)])


def test_no_matcher_outlives_a_program_that_is_killed() -> None:
    script = (
        "import re; from stantools.browse.search import Matcher\n"
        "matcher = Matcher(re.compile(b'(a+)+$')); matcher.matching([(b'a',)])\n"
        "matcher.matching([(b'a' * 60 + b'!',)], lambda _: print(matcher._process.pid, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        program.kill()
    for _ in range(600):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("it goes on")
