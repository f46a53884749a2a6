"""What a forecast says: the outcome of a start.

Facts: filestore.md sections 7, 10 and 11. docs/reference/json.md has the json form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stantools.escaping import escape
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast.changes import Change
from stantools.inspection.subscribers import NOBODY, Subscribers, subscription_json, text
from stantools.notation import counted, describe_ranges, describe_sequences
from stantools.store.ranges import Ranges

#: Errors of single messages that are kept with their text, per channel; of the others only the sequence is kept.
MAX_TEXTS = 1000


@dataclass
class Lookups:
    """What reading each message of a channel by its sequence gives.

    Attributes:
        readable: Sequences that give the message of that sequence.
        failing: Sequences that give an error.
        errors: The error texts, of the first `MAX_TEXTS` of them.
        wrong: Sequences that give a message with another sequence, and which.
    """

    readable: Ranges = field(default_factory=Ranges)
    failing: Ranges = field(default_factory=Ranges)
    errors: dict[int, str] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)

    def found(self) -> Ranges:
        """Returns the sequences that are there, readable or not."""
        if not self.failing and not self.wrong:
            return self.readable
        return Ranges.union((self.readable, self.failing, Ranges.of((seq, seq) for seq in self.wrong)))


class Harm(StrEnum):
    """How a start destroys something."""

    CUT = "cut"  #: records are cut off the end of a file
    REMOVED = "removed"  #: limits remove a file with its messages
    ANEW = "anew"  #: sequences of messages that are on disk are given to new messages
    GHOST = "ghost"  #: members of durable queue groups, and with them the position, are deleted


@dataclass(frozen=True)
class Loss:
    """Something intact that a start destroys.

    Attributes:
        how: How.
        channel: The channel; "" for clients.dat.
        file: The file, relative to the store; of `Harm.ANEW` the directory of the channel.
        at: Offset of the cut; the sequence with which a channel begins anew; else 0.
        sequences: The messages.
        records: Intact records: messages, records of a log, or members of groups.
        groups: The durable queue groups.
    """

    how: Harm
    channel: str
    file: str
    at: int = 0
    sequences: Ranges = field(default_factory=Ranges)
    records: int = 0
    groups: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Says what goes; names in it are safe to show."""
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
                    f"{where}: sequences begin anew at {self.at}; {messages} on disk {verb} out of the server's reach"
                )
        group = "position of durable queue group" if len(self.groups) == 1 else "positions of durable queue groups"
        return f"{where}: {group} {', '.join(map(escape, self.groups))} deleted: no client of it is known"

    def as_json(self) -> dict[str, Any]:
        """Returns the loss for json output."""
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
    """What the server shows of a channel once it has started.

    Attributes:
        name: The channel.
        first_seq: First sequence; 0 in a channel that never had a message.
        last_seq: Last sequence.
        count: Messages as the server counts them.
        bytes: Bytes as the server counts them.
        lookups: What reading from the first to the last sequence gives.
        alone: What reading each message on its own gives, without reading ahead; None if it is the same.
        missing: Sequences between first and last that are not there.
        delivered: What a subscriber from the start gets, in order of delivery.
        stalls_at: Sequence at which delivery stops for good, None if it does not.
        stall_error: Why it stops.
        subscriptions: Recovered subscriptions by id.
    """

    name: str
    first_seq: int = 0
    last_seq: int = 0
    count: int = 0
    bytes: int = 0
    lookups: Lookups = field(default_factory=Lookups)
    alone: Lookups | None = None
    missing: Ranges = field(default_factory=Ranges)
    delivered: Sequence[tuple[int, int]] = ()
    stalls_at: int | None = None
    stall_error: str = ""
    subscriptions: Subscribers = NOBODY

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
    """What happens if the server is started now.

    Attributes:
        server_version: The server's version.
        truncate: With the truncate option.
        starts: It starts.
        exit_code: Its exit code if it does not start, else None.
        error: Why it does not start, without the words around it in the log.
        log: What it logs from the recovery on, each line as `[LVL] STREAM: text`.
        recovered: It found a state; otherwise it starts as if the store were empty.
        channels: The channels, by name.
        clients: The recovered clients by id.
        server_info: The recovered server information, None if there was none.
        changes: What the recovery does to files, by path relative to the store.
        destroys: Intact messages and positions that the start destroys; empty if it destroys nothing.
        version_matters: Another of `SERVER_VERSIONS` would do otherwise.
        run_changes: Further changes as soon as the server runs: `server.dat` written, records appended to `subs.dat`.
            Clients that do not answer are dropped later, which is not part of it.
    """

    server_version: str
    truncate: bool
    starts: bool = False
    exit_code: int | None = None
    error: str | None = None
    log: list[str] = field(default_factory=list)
    recovered: bool = False
    channels: dict[str, ChannelForecast] = field(default_factory=dict)
    clients: dict[bytes, pb.ClientInfo] = field(default_factory=dict)
    server_info: pb.ServerInfo | None = None
    changes: dict[str, Change] = field(default_factory=dict)
    destroys: list[Loss] = field(default_factory=list)
    version_matters: bool = False
    run_changes: dict[str, Change] = field(default_factory=dict)

    def files_changed(self) -> dict[str, tuple[int | None, int | None]]:
        """Returns, by path, the sizes before and after the recovery; None where there is no file."""
        return {path: (change.before, change.after) for path, change in sorted(self.changes.items())}

    def files_changed_by_run(self) -> dict[str, tuple[int | None, int | None]]:
        """Returns, by path, the sizes before and after recovery and start."""
        sizes = self.files_changed()
        for path, change in self.run_changes.items():
            before = sizes[path][0] if path in sizes else change.before
            sizes[path] = (before, change.after)
        return dict(sorted(sizes.items()))

    def as_json(self, *, streamed: bool = False) -> dict[str, Any]:
        """Returns one of the two outcomes of docs/reference/json.md.

        Args:
            streamed: The subscriptions of the channels are iterators instead of lists.
        """
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
            "server_info": None if info is None else _info_json(info),
            "files_changed": _sizes_json(self.files_changed()),
            "files_changed_by_server_run": _sizes_json(self.files_changed_by_run()),
        }


def _info_json(info: pb.ServerInfo) -> dict[str, str]:
    return {each.name: text(getattr(info, each.name)) for each in info.DESCRIPTOR.fields}


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
    """Fills in what follows from the lookups: missing sequences, what is delivered, where it stalls.

    A subscriber that reads from the first message on skips missing sequences. At a sequence that gives an error,
    delivery stops for good. Where a sequence gives another message than its own, that one is delivered, and delivery
    goes on with the next sequence.
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
    channel.delivered = list(_delivered(channel))


def _delivered(channel: ChannelForecast) -> Iterator[tuple[int, int]]:
    """The sequences of what is delivered, as runs in the order of delivery."""
    lookups, end = channel.lookups, channel.stalls_at
    asked = [(first, last, first) for first, last in lookups.readable]
    asked += [(sequence, sequence, got) for sequence, got in lookups.wrong.items()]
    run: tuple[int, int] | None = None
    for first, last, got in sorted(asked):
        if end is not None and first > end:
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
