"""Sources over stores of our own: parts, generations, strays, keys, replies, and stores that change meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import StoreUnreadableError, UsageError
from stantools.format.columns import MessageColumns
from stantools.format.encryption import ChannelCipher, Cipher, DecryptError
from stantools.format.layout import Flag
from stantools.format.message_batch import MessageBatch
from stantools.migration.batches import BatchFinisher
from stantools.migration.source import ChannelSource
from stantools.store import slice_reader
from stantools.streamfiles.headers import is_safe_value, safe_value
from tests.migration.source.contents import Message, contents, only, write_slices
from tests.migration.stores import Record, opened

KEY = b"a key for tests"
DAY = 86_400 * 10**9


def records(first: int, last: int, start: int = 0, size: int = 20) -> list[Record]:
    return [
        (n, start + n, b"reply.%d" % n if n % 3 == 0 else b"", b"%d" % n * (n % size)) for n in range(first, last + 1)
    ]


def as_messages(listed: list[Record]) -> dict[int, Message]:
    return {sequence: (timestamp, reply, data) for sequence, timestamp, reply, data in listed}


def test_parts_of_a_long_slice(tmp_path: Path) -> None:
    everything = [r for r in records(1, 40_000) if r[0] % 1000 not in (1, 2)]
    write_slices(tmp_path, b"a", [everything])
    channel = only(opened(tmp_path))
    messages = as_messages(everything)
    assert contents(channel.read()) == messages
    assert channel.payload_bytes == sum(len(data) for _, _, data in messages.values())
    for after, until in [(0, 1), (0, 3), (63, 65), (64, 80), (16_000, 18_002), (39_999, 40_000), (20_001, 2**63)]:
        expected = {n: m for n, m in messages.items() if after < n <= until}
        assert contents(channel.read(after=after, until=until)) == expected
    assert contents(channel.read(after=40_000)) == {}
    # Not more is read for a part than a batch or two.
    with patch.object(slice_reader.kernels, "scan_messages", wraps=slice_reader.kernels.scan_messages) as scans:
        assert list(contents(channel.read(after=39_997))) == [39_998, 39_999, 40_000]
    (call,) = scans.call_args_list
    assert call.args[1] > (tmp_path / "a" / "msgs.1.dat").stat().st_size * 3 // 4


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_batches_of_any_size(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    sequences = data.draw(st.lists(st.integers(1, 120), min_size=count, max_size=count, unique=True).map(sorted))
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 40, 900]), min_size=count, max_size=count))
    listed = [(n, n * 7, b"r" * (n % 2), b"d" * size) for n, size in zip(sequences, sizes, strict=True)]
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    slices = [listed[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    after, until = data.draw(st.integers(0, 125)), data.draw(st.integers(0, 125))
    batch_bytes, batch_rows = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 50))
    with tempfile.TemporaryDirectory() as work:
        write_slices(Path(work), b"a", slices)
        channel = only(opened(Path(work)))
        found: list[int] = []
        for batch in channel.read(after=after, until=until, batch_bytes=batch_bytes, batch_rows=batch_rows):
            assert 0 < len(batch) <= batch_rows
            size = int(batch.size.sum()) + 8 * len(batch)
            assert size <= batch_bytes or len(batch) == 1
            assert all(batch.buffer[at : at + 1] == b"d" for at in batch.data_start[batch.data_size > 0].tolist())
            found += batch.sequence.tolist()
        assert found == [n for n in sequences if after < n <= until]
        assert channel.payload_bytes == sum(sizes)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_histories_with_restarts_and_copies(data: st.DataObject) -> None:
    """Every step of every generation comes out, in rising order, whatever became of the sequences."""
    slices: list[list[Record]] = []
    start, last = 0, 0
    for number in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["on", "gap", "restart", "copy", "again"]))
        start += DAY
        if kind == "copy" and slices:
            slices.append(data.draw(st.sampled_from(slices)))
            continue
        first = {"gap": last + 5, "restart": 1, "again": max(last - 3, 1)}.get(kind, last + 1)
        last = first + data.draw(st.integers(0, 30))
        slices.append([(n, t, r, b"%d:" % number + d) for n, t, r, d in records(first, last, start)])
    with tempfile.TemporaryDirectory() as work:
        write_slices(Path(work), b"a", slices)
        source = opened(Path(work))
        all_found = set()
        for channel in source.channels:
            found = contents(channel.read(), channel.raw_name)
            assert list(found) == [n for a, b in channel.sequences for n in range(a, b + 1)]
            assert len(found) == channel.count
            all_found |= {(n, *message) for n, message in found.items()}
            after, until = sorted(data.draw(st.tuples(st.integers(0, 150), st.integers(0, 150))))
            expected = {n: m for n, m in found.items() if after < n <= until}
            assert contents(channel.read(after=after, until=until)) == expected
            if found:
                assert channel.first_timestamp == found[channel.first][0]
                assert channel.last_timestamp == found[channel.sequences.last][0]
            assert channel.origin == "" or channel.lost.count() == 0
        assert all_found == {record for one in slices for record in one}


def test_generations(tmp_path: Path) -> None:
    old, new = records(1, 30), records(1, 10, DAY)
    write_slices(tmp_path, b"a", [old, new])
    by_name = {channel.name: channel for channel in opened(tmp_path).channels}
    assert contents(by_name["a"].read(), b"a") == as_messages(new)
    assert contents(by_name["a.generation-1"].read(), b"a.generation-1") == as_messages(old)
    assert "older generation" in by_name["a.generation-1"].origin and not by_name["a"].origin
    newest = opened(tmp_path, generation="newest")
    assert contents(only(newest).read()) == as_messages(new)
    assert newest.plan.lossy and newest.plan.gone == 30
    assert contents(only(opened(tmp_path, generation="1")).read()) == as_messages(old)
    with pytest.raises(UsageError, match="2 generations"):
        opened(tmp_path, generation="3")


def test_an_older_index_does_not_raise_the_last_sequence(golden_copy: Callable[[str], Path]) -> None:
    """The index of an older generation's slice names what was lost of that one, not of the newest."""
    root = golden_copy("dmg_idx_longer")
    alpha = opened(root).channel("alpha")
    assert alpha is not None and (alpha.sequences.last, alpha.last) == (38, 40)
    write_slices(root, b"alpha", [records(1, 5, 9 * 10**18)], start=9)
    alpha = opened(root).channel("alpha")
    assert alpha is not None and (alpha.first, alpha.count, alpha.last) == (1, 5, 5)


def test_archived_slices(tmp_path: Path) -> None:
    write_slices(tmp_path, b"a", [records(1, 5), records(6, 9)])
    (tmp_path / "a" / "msgs.1.dat").rename(tmp_path / "a" / "msgs.1.dat.bak")
    assert only(opened(tmp_path)).sequences.pairs() == [(6, 9)]
    with_them = only(opened(tmp_path, archived=True))
    assert contents(with_them.read()) == as_messages(records(1, 9))


def test_patterns(tmp_path: Path) -> None:
    for name in (b"a", b"a.b", b"c"):
        write_slices(tmp_path, name, [records(1, 3)])
    assert [c.name for c in opened(tmp_path).channels] == ["a", "a.b", "c"]
    assert [c.name for c in opened(tmp_path, "a.*", "c").channels] == ["a.b", "c"]
    assert opened(tmp_path, "d").channels == []


def test_strays_of_a_channel_that_was_not_chosen(tmp_path: Path) -> None:
    write_slices(tmp_path, b"a", [records(1, 3)])
    write_slices(tmp_path, b"b", [records(1, 3)])
    write_slices(tmp_path, b"a", [records(4, 6)], subject=b"b", start=2)
    assert {c.name: c.count for c in opened(tmp_path).channels} == {"a": 3, "b": 6}
    chosen = opened(tmp_path, "a")
    assert {c.name: c.count for c in chosen.channels} == {"a": 3}
    (left,) = [d for d in chosen.plan.dropped if "not selected" in d.reason]
    assert left.sequences.pairs() == [(4, 6)] and not left.loss


def test_a_renamed_directory(tmp_path: Path) -> None:
    write_slices(tmp_path, b"old", [records(1, 3)], subject=b"orders")
    for patterns in ([], ["old"]):
        channel = only(opened(tmp_path, *patterns))
        assert contents(channel.read(), b"orders") == as_messages(records(1, 3))


def test_channels_without_messages(tmp_path: Path) -> None:
    write_slices(tmp_path, b"empty", [])
    write_slices(tmp_path, b"opened", [[]])
    for channel in opened(tmp_path, key=KEY).channels:
        assert (channel.count, channel.first, channel.last, channel.payload_bytes) == (0, 0, 0, 0)
        assert (channel.first_timestamp, channel.last_timestamp, channel.encrypted) == (0, 0, False)
        assert contents(channel.read()) == {}
        channel.check_key()


def encrypted(listed: list[Record], channel: bytes, key: bytes = KEY, cipher: Cipher = Cipher.AES) -> list[Record]:
    sealer = ChannelCipher(key, channel)
    return [(n, t, reply, sealer.encrypt(data, cipher)) for n, t, reply, data in listed]


@pytest.mark.parametrize("cipher", list(Cipher))
def test_encrypted(tmp_path: Path, cipher: Cipher) -> None:
    plain = records(1, 300)
    # A store may be plain at first, and both ciphers may follow.
    sealed = [*plain[:100], *encrypted(plain[100:], b"a", cipher=cipher)]
    write_slices(tmp_path, b"a", [sealed[:90], sealed[90:]])
    channel = only(opened(tmp_path, key=KEY))
    assert channel.encrypted
    channel.check_key()
    assert contents(channel.read()) == as_messages(plain)
    assert contents(channel.read(after=150, until=160)) == as_messages(plain[150:160])
    assert contents(only(opened(tmp_path)).read()) == as_messages(sealed)


def test_the_key_of_an_older_generation_goes_by_the_old_name(tmp_path: Path) -> None:
    old, new = records(1, 30), records(1, 10, DAY)
    write_slices(tmp_path, b"a", [encrypted(old, b"a"), encrypted(new, b"a")])
    by_name = {channel.name: channel for channel in opened(tmp_path, key=KEY).channels}
    assert contents(by_name["a"].read()) == as_messages(new)
    assert contents(by_name["a.generation-1"].read()) == as_messages(old)


def test_a_wrong_key(tmp_path: Path) -> None:
    write_slices(tmp_path, b"a", [encrypted(records(41, 60), b"a")])
    channel = only(opened(tmp_path, key=b"another"))
    with pytest.raises(DecryptError, match=r"channel 'a': message 41 cannot be decrypted.*\(19 of 19 .* 41 to 59\)"):
        list(channel.read())
    with pytest.raises(DecryptError, match="message 41"):
        channel.check_key()
    with pytest.raises(UsageError, match="encryption key required"):
        opened(tmp_path, key=b"")


def test_plain_payloads_that_only_look_encrypted(tmp_path: Path) -> None:
    plain = records(1, 20, size=7)
    listed = encrypted(plain, b"a")
    listed[4] = (5, 5, b"", b"\1 short")
    listed[9] = (10, 10, b"reply", b"\2" + b"long" * 20)
    write_slices(tmp_path, b"a", [listed])
    channel = only(opened(tmp_path, key=KEY))
    with pytest.raises(DecryptError, match=r"message 5 .*\(2 of 18 ") as caught:
        list(channel.read())
    assert "keep their payloads" in caught.value.remedy
    kept = only(opened(tmp_path, key=KEY, keep_encrypted=True))
    assert contents(kept.read()) == as_messages(plain) | as_messages([listed[4], listed[9]])


def test_plain_channels_do_not_look_encrypted(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    listed = [(n, n, b"", b"\1" + generator.bytes(60)) for n in range(1, 400)]
    write_slices(tmp_path, b"a", [listed])
    assert not only(opened(tmp_path)).encrypted


@settings(max_examples=200, deadline=None)
@given(
    replies=st.lists(
        st.one_of(
            st.just(b""),
            st.binary(max_size=6),
            st.text("ab. %~\x7f\x1f\x00\r\n é", max_size=90).map(str.encode),
            st.integers(1, 100).map(lambda n: b"x" * n),
        ),
        min_size=1,
        max_size=120,
    )
)
def test_replies_become_header_values(replies: list[bytes]) -> None:
    payloads = [b"%d" % number for number in range(len(replies))]
    columns = MessageColumns(len(replies))
    parts = [part for pair in zip(replies, payloads, strict=True) for part in pair]
    buffer, at = memoryview(b"".join(parts)), 0
    for row, (reply, payload) in enumerate(zip(replies, payloads, strict=True)):
        columns.reply_start[row], columns.reply_size[row] = at if reply else 0, len(reply)
        columns.data_start[row], columns.data_size[row] = at + len(reply), len(payload)
        columns.flags[row] = Flag.HAS_REPLY if reply else 0
        at += len(reply) + len(payload)
    finished = BatchFinisher(b"a").finish(MessageBatch(columns, buffer, b"a"))
    assert (finished.buffer is buffer) == all(map(is_safe_value, replies))
    assert list(finished.replies()) == [safe_value(reply) for reply in replies]
    assert list(finished.payloads()) == payloads


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _replace(path: Path) -> None:
    other = path.with_name("other")
    write_slices(
        other,
        b"a",
        [
            records(1, 199),
        ],
    )
    (other / "a" / "msgs.1.dat").replace(path)


def _renumber(path: Path) -> None:
    """Puts records of the same lengths with other sequences there."""
    other = path.with_name("other")
    write_slices(other, b"a", [[(n + 1000, t, r, d) for n, t, r, d in records(200, 400)]])
    (other / "a" / "msgs.1.dat").replace(path)


def _other_subject(path: Path) -> None:
    other = path.with_name("other")
    write_slices(other, b"a", [records(200, 400)], subject=b"b")
    (other / "a" / "msgs.1.dat").replace(path)


@pytest.mark.parametrize("change", [_cut, _flip, _replace, _renumber, _other_subject, Path.unlink])
@pytest.mark.parametrize("after", [0, 250])
def test_a_store_that_changes_meanwhile(tmp_path: Path, change: Callable[[Path], None], after: int) -> None:
    write_slices(tmp_path, b"a", [records(200, 400)])
    channel = only(opened(tmp_path))
    change(tmp_path / "a" / "msgs.1.dat")
    with pytest.raises(StoreUnreadableError, match=r"msgs\.1\.dat"):
        list(channel.read(after=after))


def test_what_is_appended_later_is_not_seen(tmp_path: Path) -> None:
    write_slices(tmp_path, b"a", [records(1, 200)])
    channel = only(opened(tmp_path))
    write_slices(tmp_path, b"a", [records(1, 300)])
    assert contents(channel.read()) == as_messages(records(1, 200))


def test_reading_in_threads(tmp_path: Path) -> None:
    listed = records(1, 30_000)
    write_slices(tmp_path, b"a", [listed[:20_000], listed[20_000:]])
    channel = only(opened(tmp_path))

    def read(after: int) -> dict[int, Message]:
        return contents(ChannelSource.read(channel, after=after))

    with ThreadPoolExecutor(3) as pool:
        for after, found in zip((0, 5000, 25_000), pool.map(read, (0, 5000, 25_000)), strict=True):
            assert found == as_messages(listed[after:])


def test_reading_can_be_given_up(tmp_path: Path) -> None:
    write_slices(tmp_path, b"a", [records(1, 40_000)])
    channel = only(opened(tmp_path))
    batches = channel.read()
    first = next(batches)
    assert int(first.sequence[0]) == 1
    view = np.frombuffer(first.buffer, np.uint8)
    batches.close()
    # A view that is kept too long stays valid.
    assert bytes(view[:4]) == b"\1\0\0\0"
