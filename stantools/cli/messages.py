"""`stantools messages`: the messages of a channel."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import complete_channel, options_of, reading_options, store_argument, verb
from stantools.cli.output import hex_dump, payload_text, show_items
from stantools.end_signal import EndSignal
from stantools.errors import ExitCode, UsageError
from stantools.escaping import text
from stantools.notation import counted, format_time
from stantools.options import ARCHIVED, COUNT, DATA, SEQUENCES, SINCE, UNTIL, option
from stantools.streamfiles.headers import header_fields

if TYPE_CHECKING:
    from stantools.inspection.stored_messages import ReadProblem, Selection, StoredMessage
    from stantools.sources.source import Source
    from stantools.store.read_options import ReadOptions

_COLUMNS = ("seq", "timestamp_ns", "time", "subject", "reply", "data", "size")
_STREAM_COLUMNS = ("seq", "timestamp_ns", "time", "subject", "headers", "data", "size")
#: Seconds between two looks at a channel that is followed.
_LOOK_EVERY = 0.5
#: Payloads that look encrypted until this is reported.
_SUSPECTS = 4


@dataclass(frozen=True)
class MessageSelection:
    sequences: tuple[int | None, int | None] | None = SEQUENCES.field()
    since: int | None = SINCE.field()
    until: int | None = UNTIL.field()
    tail: int | None = COUNT.field(help="Only the last N of the selected messages.")
    following: bool = option("Keep printing new messages of a running server.", "--follow", "-f", default=False)
    grep: str | None = option("Only messages whose payload contains TEXT.", metavar="TEXT")
    regex: bool = option("Take TEXT of --grep as a regular expression over bytes.", default=False)
    ignore_case: bool = option("Ignore case in --grep.", "--ignore-case", "-i", default=False)
    data: str | None = DATA.field()
    cut: int = COUNT.field(help="Bytes of each payload in a table; 0 shows all.", default=160)
    archived: bool = ARCHIVED.field(help="Read .bak slices as well.")

    def pattern(self) -> re.Pattern[bytes] | None:
        """Returns the pattern that payloads must contain; None for all."""
        if self.grep is None:
            if self.regex or self.ignore_case:
                raise UsageError("--regex and --ignore-case need --grep", "add --grep TEXT")
            return None
        wanted = self.grep.encode("utf-8", "surrogateescape")
        try:
            return re.compile(wanted if self.regex else re.escape(wanted), re.IGNORECASE if self.ignore_case else 0)
        except re.error as problem:
            raise UsageError(f"{console.escape(self.grep)} is not a regular expression: {problem}") from problem


@verb("messages", "table", "ndjson", "json", "csv", tables=False, progress=False)
@store_argument
@click.argument("channel", shell_complete=complete_channel)
@options_of(MessageSelection, "options")
@reading_options()
def command(store: Path, channel: str, options: MessageSelection, read_options: ReadOptions) -> int:
    """Print the messages of CHANNEL, in order; or of a stream of a JetStream directory, STREAM or ACCOUNT/STREAM.

    Every intact message is printed, even those that the server would not see or deliver. Damaged ranges are reported on
    stderr in their place; the exit code is then 1.

    Ctrl-C is the normal end of --follow: the number of messages and the last sequence are reported on stderr, and the
    exit code is 0 (1 with damage). It is 130 if the messages that were there before are not all printed yet.
    """
    from stantools.cli.opening import open_source
    from stantools.inspection.stored_messages import Selection
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.MESSAGES, channels=[channel])
    first, last = options.sequences or (None, None)
    selection = Selection(first, last, options.since, options.until, options.tail, options.pattern())
    if source.holds_streams:
        return _print_stream(source, channel, options, selection)
    return _print_channel(source, channel, options, selection)


def _print_stream(source: Source, name: str, options: MessageSelection, selection: Selection) -> int:
    from stantools.inspection.stream_messages import StreamMessageReader

    if options.following or options.archived:
        raise UsageError(
            "--follow and --archived are for file stores: the streams of a directory are read as they are now",
            "leave them out; `nats stream view STREAM` shows those of a running server",
        )
    warnings = _Warnings(name, encryption_key_given=True)
    _show(options, name, _STREAM_COLUMNS, warnings.watch(StreamMessageReader(source.stream(name)).read(selection)))
    return ExitCode.FINDINGS if warnings.count else ExitCode.CLEAN


def _print_channel(source: Source, channel: str, options: MessageSelection, selection: Selection) -> int:
    from stantools.cli.opening import open_channel
    from stantools.inspection.stored_messages import MessageReader, follow
    from stantools.store.growing_channel import ANYWHERE, ChannelFollower, GrowingChannel

    if options.following and (source.sql or source.archived):
        raise UsageError(
            f"{console.escape(source.shown)}: {source.found.sentence}, which is read as it is now",
            "leave --follow out; it is for the directory of a running server",
        )
    opened = source.store("messages are printed from it")
    if source.nodes:
        console.note(
            f"reading the file store of the node, {console.escape(str(opened.path))}; "
            "messages that only its Raft log holds are not in it: stantools merge and replay read both"
        )
    files = open_channel(opened, channel)

    reader = MessageReader(files, opened.crc, key=opened.key, archived=options.archived)
    follower = ChannelFollower(os.fspath(files.path.parent), files.path.name, opened.crc)
    at = follower.ask(GrowingChannel.latest) if options.following else ANYWHERE
    warnings = _Warnings(channel, encryption_key_given=opened.key is not None)

    printed, last = 0, 0

    def messages() -> Iterator[StoredMessage]:
        nonlocal printed, last
        newest = at.timestamp, at.sequence
        for item in warnings.watch(reader.read(selection)):
            yield item
            newest = max(newest, (item.timestamp, item.sequence))
            printed, last = printed + 1, item.sequence
        if not options.following:
            return
        sys.stdout.flush()
        wanted = selection.resolved(reader.last_sequence())
        with EndSignal() as end:
            wait = partial(end.wait, _LOOK_EVERY)
            for item in warnings.watch(follow(reader, follower, at, newest, wait, wanted)):
                yield item
                sys.stdout.flush()
                printed, last = printed + 1, item.sequence
                if end.asked:
                    break

    _show(options, channel, _COLUMNS, messages())
    if options.following:
        again = f"; to continue from there: --seq {last + 1}: --follow" if last else ""
        reached = f", the last one is {last}" if last else ""
        console.note(f"{counted(printed, 'message')} of {console.escape(channel)} printed{reached}{again}")
    return ExitCode.FINDINGS if warnings.count else ExitCode.CLEAN


def _show(options: MessageSelection, channel: str, columns: Sequence[str], messages: Iterator[StoredMessage]) -> None:
    data_format = options.data or ("text" if console.output() == "table" else "base64")
    line = partial(_print_line, options.cut, channel.encode("utf-8", "surrogateescape"), data_format)
    show_items({"channel": channel}, "messages", messages, line, columns, partial(_as_object, data_format))


class _Warnings:
    """Reports damage and gaps between the messages on stderr."""

    def __init__(self, channel: str, *, encryption_key_given: bool) -> None:
        self._channel = console.escape(channel)
        self._encryption_noted = encryption_key_given
        self._suspects: list[tuple[int, bytes]] = []
        self.count = 0

    def watch(self, items: Iterator[StoredMessage | ReadProblem]) -> Iterator[StoredMessage]:
        from stantools.format.encryption import may_be_encrypted
        from stantools.inspection.stored_messages import ReadProblem

        for item in items:
            if isinstance(item, ReadProblem):
                self._show_problem(item)
                continue
            if item.error:
                self._warn(f"{self._channel}: message {item.sequence} cannot be decrypted: {item.error}")
            elif item.data and not self._encryption_noted:
                self._look_for_encryption(item)
            yield item
        if may_be_encrypted(self._suspects):
            self._tell_encrypted()

    def _show_problem(self, problem: ReadProblem) -> None:
        place = f"{self._channel}/{console.escape(problem.file)}"
        if problem.offset is not None:
            place += f" at offset {problem.offset}"
        if problem.length is not None:
            place += f", {counted(problem.length, 'byte')}"
        if problem.sequence is not None:
            place += f", sequence {problem.sequence}"
        self._warn(f"{place}: {console.escape(problem.detail)}")

    def _warn(self, text: str) -> None:
        self.count += 1
        console.warning(text)

    def _look_for_encryption(self, message: StoredMessage) -> None:
        from stantools.format.encryption import looks_encrypted, may_be_encrypted

        if looks_encrypted(message.data, message.sequence):
            self._suspects.append((message.sequence, message.data))
            if len(self._suspects) % _SUSPECTS == 0 and may_be_encrypted(self._suspects):
                self._tell_encrypted()

    def _tell_encrypted(self) -> None:
        if not self._encryption_noted:
            self._encryption_noted = True
            console.note(
                f"payloads of {self._channel} may be encrypted; "
                "give the server's key by --encryption-key-env or --encryption-key-file to find out"
            )


def _as_object(data_format: str, message: StoredMessage) -> dict[str, Any]:
    record: dict[str, Any] = {
        "seq": message.sequence,
        "timestamp_ns": message.timestamp,
        "time": format_time(message.timestamp),
        "subject": text(message.subject),
    }
    if message.headers is None:
        record["reply"] = text(message.reply)
    else:
        record["headers"] = header_fields(message.headers)
    if data_format != "none":
        record["data"] = payload_text(message.data, data_format)
    record["size"] = len(message.data)
    if message.error:
        record["error"] = message.error
    return record


def _print_line(cut: int, channel: bytes, data_format: str, message: StoredMessage) -> None:
    data = message.data
    line = f"{message.sequence:>8}  {format_time(message.timestamp)}  {len(data):>7}"
    if message.subject != channel:
        line += f"  subject={console.escape(message.subject)}"
    if message.reply:
        line += f"  reply={console.escape(message.reply)}"
    for name, values in header_fields(message.headers or b"").items():
        line += f"  {console.escape(name)}: {console.escape(', '.join(values))}"
    shown = data[:cut] if cut else data
    more = f"… and {counted(len(data) - len(shown), 'byte')} more" if len(shown) < len(data) else ""
    if data_format == "hex":
        sys.stdout.write(f"{line}\n{hex_dump(shown)}" + (f"  {more}\n" if more else ""))
        return
    if data_format == "text":
        line += f"  {console.escape(shown)}"
    elif data_format == "base64":
        line += f"  {payload_text(shown, data_format)}"
    sys.stdout.write(f"{line} {more}\n" if more and data_format != "none" else f"{line}\n")
