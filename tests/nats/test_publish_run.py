"""Runs of messages into a modelled stream that stores each at its own sequence: windows, lost answers, errors."""

from __future__ import annotations

import json
import random
import re

from stantools.nats.columns import FrameColumns
from stantools.nats.errors import WRONG_LAST, ApiError
from stantools.nats.frames import frame_table
from stantools.nats.kernels import parse_messages, read_deliveries
from stantools.nats.publishing.publish_run import AckOrderError, PublishRun, PublishWindow, UnexpectedAnswer
from tests.streamfiles.making import Item, batch

_FRAME = re.compile(
    rb"HPUB \S+ (\S+) \d+ \d+\r\nNATS/1.0\r\n(?:(?!\r\n\r\n).)*Nats-Expected-Last-Sequence: (\d+)\r\n\r\n(.*?)\r\n"
    rb"(?=HPUB|$)",
    re.DOTALL,
)
WINDOW = PublishWindow(messages=8, bytes=2000, chunk=3)


class Stream:
    """Stores what fits, and answers everything."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def publish(self, frames: bytes) -> list[bytes]:
        return [self._store(*found) for found in _FRAME.findall(frames)]

    def _store(self, reply: bytes, expected: bytes, data: bytes) -> bytes:
        answer: dict[str, object]
        if int(expected) == len(self.messages):
            self.messages.append(data)
            answer = {"stream": "S", "seq": len(self.messages)}
        else:
            text = f"wrong last sequence: {len(self.messages)}"
            answer = {"error": {"code": 400, "err_code": WRONG_LAST, "description": text}}
        return message(reply, json.dumps(answer, separators=(",", ":")).encode())


def message(subject: bytes, data: bytes) -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(data), data)


def answer(run: PublishRun, answers: list[bytes]) -> list[UnexpectedAnswer]:
    buffer, frames = b"".join(answers), frame_table(max(len(answers), 1))
    rows, *_ = parse_messages(buffer, 0, len(buffer), frames, 4096, 1 << 20)
    assert rows == len(answers)
    columns = FrameColumns(rows)
    read_deliveries(buffer, frames, 0, rows, columns)
    return list(run.unexpected(buffer, columns, run.take(buffer, columns)))


def texts(count: int, seed: int) -> list[bytes]:
    generator = random.Random(seed)
    return [b"%d" % number + b"." * generator.choice([0, 20, 300, 3000]) for number in range(count)]


def send(run: PublishRun, wanted: list[bytes]) -> bytes:
    """Sends the next messages if the window allows, and returns their frames."""
    rows = min(WINDOW.chunk, len(wanted) - run.sent)
    part = batch([Item(run.sent + 1 + row, 10**18, wanted[run.sent + row]) for row in range(rows)], b"orders")
    frames, done = run.encode(part, 0, rows, b"id:", origin=True)
    assert done
    if not run.fits(done, len(frames)):
        return b""
    run.add(done, len(frames))
    return frames


def test_every_message_is_stored_once_whatever_is_lost() -> None:
    for seed in range(30):
        generator = random.Random(seed)
        stream, wanted, run, runs = Stream(), texts(60, seed), PublishRun("S", WINDOW, 64), 0
        while len(stream.messages) < len(wanted) or run.confirmed < len(wanted):
            runs += 1
            run.begin(b"_INBOX.x.%d." % runs, len(stream.messages))
            late: list[bytes] = []
            for _ in range(generator.randint(1, 30)):
                frames = send(run, wanted) if run.sent < len(wanted) else b""
                assert run.in_flight <= WINDOW.messages, seed
                if generator.random() < 0.1:
                    break  # This write is lost, and the connection.
                late += stream.publish(frames)
                assert run.confirmed <= len(stream.messages), seed
                now = generator.randint(0, len(late))
                assert not answer(run, late[:now]), seed
                late = late[now:]
            # Another run does not count the answers to this one.
            before = run.confirmed
            run.begin(b"_INBOX.x.%d." % (runs + 1000), before)
            assert not answer(run, late) and run.confirmed == before, seed
        assert stream.messages == wanted, seed


def test_answers_that_end_a_run() -> None:
    stream, wanted, run = Stream(), [b"a", b"b", b"c"], PublishRun("S", WINDOW)
    run.begin(b"_INBOX.x.", 0)
    first, _, third = stream.publish(send(run, wanted))
    # The answer to the second message is lost.
    [unexpected] = answer(run, [first, third])
    assert unexpected.sequence == 3 and isinstance(unexpected.problem, AckOrderError)
    assert (run.confirmed, run.in_flight) == (1, 2)
    # A message of another publisher is at the sequence.
    run.begin(b"_INBOX.y.", 1)
    problems = answer(run, stream.publish(send(run, wanted)))
    assert [each.sequence for each in problems] == [2, 3]
    assert all(isinstance(each.problem, ApiError) and each.problem.last_counted == 3 for each in problems)
    assert (run.confirmed, run.in_flight) == (1, 2)
    # No stream, or something else, answers.
    [unexpected] = answer(run, [message(b"_INBOX.y.2", b"")])
    assert isinstance(unexpected.problem, ApiError) and unexpected.problem.retriable
    [unexpected] = answer(run, [message(b"_INBOX.y.2", b'{"stream":"T","seq":9}')])
    assert "message 2 of stream S was stored by T at sequence 9" in unexpected.problem.message
    # An answer to a message that was not sent confirms nothing.
    run.begin(b"_INBOX.z.", 3)
    assert answer(run, [message(b"_INBOX.z.4", b'{"stream":"S","seq":4}')]) and run.confirmed == 3


def test_messages_without_a_place() -> None:
    """Other writers publish between them; the stream knows some from an earlier run."""
    run = PublishRun("S", WINDOW, exact=False)
    run.begin(b"_INBOX.x.", 5)
    part = batch([Item(20, 10**18, b"a"), Item(30, 10**18, b"b"), Item(31, 10**18, b"c")], b"orders")
    part.stream_sequence[:] = [6, 7, 8]
    frames, done = run.encode(part, 0, 3, b"id:", origin=False)
    assert done == 3 and b"Nats-Expected-Last-Sequence" not in frames and b"Nats-Msg-Id: id:31\r\n" in frames
    run.add(done, len(frames))
    first = message(b"_INBOX.x.6", b'{"stream":"S","seq":900}')
    second = message(b"_INBOX.x.7", b'{"stream":"S","seq":17,"duplicate": true}')
    assert not answer(run, [first, second])
    assert (run.confirmed, run.in_flight, run.stored, run.repeated) == (7, 1, 17, 1)
    refused = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    [unexpected] = answer(run, [message(b"_INBOX.x.8", refused)])
    assert unexpected.sequence == 8 and isinstance(unexpected.problem, ApiError)
    [unexpected] = answer(run, [message(b"_INBOX.x.9", b'{"stream":"S","seq":902}')])
    assert isinstance(unexpected.problem, AckOrderError) and "a message to S" in unexpected.problem.message
    [unexpected] = answer(run, [message(b"_INBOX.x.8", b'{"ok":true}')])
    assert "was answered with" in unexpected.problem.message
    run.begin(b"_INBOX.y.", 7)
    assert (run.confirmed, run.stored, run.repeated) == (7, 0, 1)


def test_a_message_too_large_for_the_server() -> None:
    run = PublishRun("S", WINDOW, 64)
    run.begin(b"_INBOX.x.", 0)
    part = batch([Item(1, 10**18, b"a"), Item(2, 10**18, b"b" * 5000)], b"orders")
    frames, done = run.encode(part, 0, 2, b"id:", origin=True, largest=4000)
    assert done == 1
    run.add(done, len(frames))
    assert run.encode(part, 1, 1, b"id:", origin=True, largest=4000) == (b"", 0)
    frames, done = run.encode(part, 1, 1, b"id:", origin=True)
    assert done == 1 and b"b" * 5000 in frames
    # It has to wait, although it is a single message: alone it may exceed the window.
    assert not run.fits(1, len(frames))
    run.confirm(1)
    assert run.fits(1, len(frames))
