"""The outcome of a start, as a forecast describes it.

Facts: filestore.md sections 7, 10 and 11. docs/reference/json.md has the json form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stantools.escaping import escape, text
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast.changes import Change
from stantools.inspection.subscribers import NO_SUBSCRIPTIONS, SubscriberList, fields_json, subscription_json
from stantools.notation import counted, describe_ranges, describe_sequences
from stantools.store.ranges import Ranges

#: Errors of single messages that are kept with their text, per channel; for the others only the sequence is kept.
MAX_TEXTS = 1000


@dataclass
class Lookups:
    """The result of reading each message of a channel by its sequence."""

    readable: Ranges = field(default_factory=Ranges)  #: sequences that return their own message
    failing: Ranges = field(default_factory=Ranges)  #: sequences that cannot be read
    errors: dict[int, str] = field(default_factory=dict)  #: error texts of the first `MAX_TEXTS` of them
    #: Sequences that return the message of another sequence, and that sequence.
    wrong: dict[int, int] = field(default_factory=dict)

    def found(self) -> Ranges:
        """Returns the sequences that are there, readable or not."""
        if not self.failing and not self.wrong:
            return self.readable
        return Ranges.union((self.readable, self.failing, Ranges.of((seq, seq) for seq in self.wrong)))


class Harm(StrEnum):
    CUT = "cut"  #: records are cut off the end of a file
    REMOVED = "removed"  #: limits remove a file with its messages
    ANEW = "anew"  #: new messages get the sequences of messages on disk
    GHOST = "ghost"  #: members of durable queue groups are deleted, and the group's position with them


@dataclass(frozen=True)
class Loss:
    """Intact data that a start destroys."""

    how: Harm
    channel: str  #: "" for clients.dat
    file: str  #: relative to the store; the channel's directory for `Harm.ANEW`
    at: int = 0  #: offset of the cut; the sequence with which a channel starts over; else 0
    sequences: Ranges = field(default_factory=Ranges)
    records: int = 0  #: intact records: messages, records of a log, or members of groups
    groups: tuple[str, ...] = ()  #: durable queue groups

    def sentence(self) -> str:
        """Describes the loss; names in it are safe to show."""
        messages = f"message{'' if self.records == 1 else 's'} {describe_ranges(self.sequences)}"
        where = escape(self.file)
        match self.how:
            case Harm.CUT:
                count = counted(self.records, "intact record")
                what = f"{count} ({describe_sequences(self.sequences)})" if self.sequences else count
                return f"{where} is cut at offset {self.at}: {what} lost"
            case Harm.REMOVED:
                return f"{where} is removed by the limits: {messages} lost"
            case Harm.ANEW:
                verb = "is" if self.records == 1 else "are"
                return (
                    f"{where}: sequences start over at {self.at}; {messages} on disk {verb} out of the server's reach"
                )
        group = "position of durable queue group" if len(self.groups) == 1 else "positions of durable queue groups"
        return f"{where}: {group} {', '.join(map(escape, self.groups))} deleted: no client of it is known"

    def as_json(self) -> dict[str, Any]:
        return {
            "how": self.how.value,
            "channel": self.channel or None,
            "file": self.file,
            "at": self.at,
            "sequences": self.sequences.as_json(),
            "records": self.records,
            "groups": list(self.groups),
            "detail": self.sentence(),
        }


@dataclass
class ChannelForecast:
    """The server's view of a channel after its start."""

    name: str
    first_seq: int = 0  #: first sequence; 0 in a channel that never had a message
    last_seq: int = 0
    count: int = 0  #: messages as the server counts them
    bytes: int = 0  #: bytes as the server counts them
    lookups: Lookups = field(default_factory=Lookups)  #: result of reading from the first to the last sequence
    #: Result of reading each message on its own, without read-ahead; None if it is the same.
    alone: Lookups | None = None
    missing: Ranges = field(default_factory=Ranges)  #: sequences between first and last without a message
    delivered: Sequence[tuple[int, int]] = ()  #: messages received by a subscriber from the start, in order of delivery
    stalls_at: int | None = None  #: sequence at which delivery stops for good; None if it does not
    stall_error: str = ""  #: reason why it stops
    limited: bool = False  #: limits hide or remove its oldest messages
    #: Messages that no lookup finds once a message is published: lookups begin with the current slice, which then spans
    #: their sequences.
    overlaid: Ranges = field(default_factory=Ranges)
    #: The current slice holds more records than sequences: messages published next are not found in it.
    misplaces: bool = False
    #: When the server begins to search for a message for ever, in words; "" if it does not (SQL stores).
    endless: str = ""
    subscriptions: SubscriberList = NO_SUBSCRIPTIONS  #: recovered subscriptions by id

    def as_json(self, *, streamed: bool = False) -> dict[str, Any]:
        """Returns the channel's part of the json contract; `streamed`: with an iterator of subscriptions."""
        result: dict[str, Any] = {
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "count": self.count,
            "bytes": self.bytes,
            **_lookups_json(self.lookups),
            "missing": self.missing.as_json(),
            "delivered_from_start": [list(pair) for pair in self.delivered],
            "stalls_at": self.stalls_at,
        }
        if self.stall_error:
            result["stall_error"] = self.stall_error
        if self.alone is not None:
            result["without_read_ahead"] = _lookups_json(self.alone)
        subscriptions = (subscription_json(each.state, each.pending, each.status) for each in self.subscriptions)
        result["subscriptions"] = subscriptions if streamed else list(subscriptions)
        return result


@dataclass
class Forecast:
    server_version: str
    truncate: bool  #: with the truncate option
    starts: bool = False
    exit_code: int | None = None  #: exit code if it does not start, else None
    error: str | None = None  #: reason why it does not start, without its prefix in the log
    #: Log lines from the recovery on, each as `[LVL] STREAM: text`.
    log: list[str] = field(default_factory=list)
    recovered: bool = False  #: it found a state; otherwise it starts as if the store were empty
    channels: dict[str, ChannelForecast] = field(default_factory=dict)  #: by name
    clients: dict[bytes, pb.ClientInfo] = field(default_factory=dict)  #: recovered clients by id
    server_info: pb.ServerInfo | None = None  #: recovered server information, None if there was none
    #: Changes to files by the recovery, by path relative to the store.
    changes: dict[str, Change] = field(default_factory=dict)
    #: Intact messages and positions that the start destroys.
    destroys: list[Loss] = field(default_factory=list)
    version_matters: bool = False  #: another of `SERVER_VERSIONS` has another outcome
    #: Further changes when the server runs: `server.dat` written, records appended to `subs.dat`. Clients that do not
    #: answer are dropped later and not included.
    run_changes: dict[str, Change] = field(default_factory=dict)

    def files_changed(self) -> dict[str, tuple[int | None, int | None]]:
        """Returns, by path, the sizes before and after the recovery; None if there is no file."""
        return {path: (change.before, change.after) for path, change in sorted(self.changes.items())}

    def files_changed_by_run(self) -> dict[str, tuple[int | None, int | None]]:
        """Returns, by path, the sizes before and after recovery and start."""
        sizes = self.files_changed()
        for path, change in self.run_changes.items():
            before = sizes[path][0] if path in sizes else change.before
            sizes[path] = (before, change.after)
        return dict(sorted(sizes.items()))

    def as_json(self, *, streamed: bool = False) -> dict[str, Any]:
        """Returns one of the two outcomes of docs/reference/json.md; `streamed`: with iterators of subscriptions."""
        info = self.server_info
        return {
            "starts": self.starts,
            "exit_code": self.exit_code,
            "error": self.error,
            "log": list(self.log),
            "recovered": self.recovered,
            "destroys": [loss.as_json() for loss in self.destroys],
            "channels": {name: channel.as_json(streamed=streamed) for name, channel in self.channels.items()},
            "clients": [text(client) for client in sorted(self.clients)],
            "server_info": None if info is None else fields_json(info),
            "files_changed": _sizes_json(self.files_changed()),
            "files_changed_by_server_run": _sizes_json(self.files_changed_by_run()),
        }


def _lookups_json(lookups: Lookups) -> dict[str, Any]:
    result: dict[str, Any] = {"readable": lookups.readable.as_json()}
    if lookups.failing:
        result["unreadable"] = lookups.failing.as_json()
        result["lookup_errors"] = {str(seq): error for seq, error in sorted(lookups.errors.items())}
    if lookups.wrong:
        result["wrong_message"] = {str(seq): other for seq, other in sorted(lookups.wrong.items())}
    return result


def _sizes_json(sizes: dict[str, tuple[int | None, int | None]]) -> dict[str, dict[str, int | None]]:
    return {path: {"size_before": before, "size_after": after} for path, (before, after) in sizes.items()}


def complete(channel: ChannelForecast) -> None:
    """Derives from the lookups: missing sequences, delivered messages, the place where delivery stalls.

    A subscriber that reads from the first message on skips missing sequences. At a sequence that cannot be read,
    delivery stops for good. Where a sequence returns another message than its own, that one is delivered, and
    delivery continues with the next sequence.
    """
    lookups = channel.lookups
    if lookups.readable.pairs() == [(channel.first_seq, channel.last_seq)]:
        channel.delivered = [(channel.first_seq, channel.last_seq)]
        return
    if 0 < channel.first_seq <= channel.last_seq:
        channel.missing = Ranges.of([(channel.first_seq, channel.last_seq)]) - lookups.found()
    if lookups.failing:
        channel.stalls_at = lookups.failing.first
        channel.stall_error = lookups.errors.get(channel.stalls_at, "")
    channel.delivered = list(delivered(channel))


def delivered(channel: ChannelForecast) -> Iterator[tuple[int, int]]:
    """Yields the sequences in the messages that are delivered, as runs in the order of delivery."""
    lookups, end = channel.lookups, channel.stalls_at
    own = lookups.readable - Ranges.of((sequence, sequence) for sequence in lookups.wrong)
    asked = [(first, last, first) for first, last in own]
    asked += [(sequence, sequence, got) for sequence, got in lookups.wrong.items()]
    run: tuple[int, int] | None = None
    for first, last, got in sorted(asked):
        if end is not None and first >= end:
            break
        if end is not None:
            last = min(last, end - 1)
        part = (got, got + last - first)
        if run is not None and run[1] + 1 == part[0]:
            run = (run[0], part[1])
            continue
        if run is not None:
            yield run
        run = part
    if run is not None:
        yield run
