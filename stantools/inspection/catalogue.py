"""The catalogue of finding codes: what each means, what the real server does with it, and what to do.

Codes never change their meaning. `docs/findings.md` is generated from this table; `stantools explain CODE` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stantools.inspection.findings import Finding, Severity

_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True)
class Entry:
    """One finding code.

    Attributes:
        code: Stable name.
        severity: How bad it is.
        meaning: What was found.
        cause: How it usually comes about.
        server: What the real server does with it.
        remedy: What to do.
    """

    code: str
    severity: Severity
    meaning: str
    cause: str
    server: str
    remedy: str


_SALVAGE = "run `stantools salvage STORE --out NEW`: it keeps every intact record"
_FORECAST = "run `stantools forecast STORE` before starting the server: starting it can destroy data"
_NOTHING = "nothing to do"
_CRASH = "a crash or power failure while the file was being written"
_BITROT = "a bad disk, memory or copy; the file was edited"

_ENTRIES = (
    # The store as a whole
    Entry(
        "server-missing",
        _E,
        "server.dat is missing or holds no record",
        "a crash at the first start; a partial copy",
        "up to 0.24 it starts with an empty state, and the next publish overwrites sequences from 1; 0.25 recovers",
        "do not start the server; " + _SALVAGE + " (name the cluster with --cluster-id)",
    ),
    Entry(
        "server-damaged",
        _E,
        "server.dat cannot be read",
        _CRASH,
        "it refuses to start, also with its truncate option",
        _SALVAGE + "; the record is rebuilt from its intact parts or --cluster-id",
    ),
    Entry(
        "clients-missing",
        _W,
        "clients.dat is missing",
        "a partial copy, or somebody removed it",
        "it starts; plain subscriptions stay for ever and open durable queue groups are deleted with their position",
        _SALVAGE + "; it turns such subscriptions into offline durables",
    ),
    Entry(
        "file-unreadable",
        _E,
        "a file or directory cannot be read",
        "permissions, or a failing disk",
        "it refuses to start",
        "check permissions and the disk, then verify again",
    ),
    Entry(
        "file-version",
        _E,
        "a file does not begin with file version 1",
        _CRASH + "; another program's file",
        "it refuses to start, also with its truncate option",
        _SALVAGE,
    ),
    Entry(
        "leftover-file",
        _I,
        "a temporary file of an interrupted compaction",
        "a crash during compaction",
        "it ignores the file and never removes it",
        "compare it with the file it was to replace, then delete it",
    ),
    Entry(
        "foreign-file",
        _I,
        "a file that does not belong to a store",
        "somebody put it there",
        "it ignores the file",
        "move it elsewhere",
    ),
    Entry(
        "foreign-directory",
        _W,
        "a directory that holds no channel",
        "lost+found, a backup, an empty channel",
        "it takes every directory in the root for a channel and writes a subs.dat into it",
        "move it elsewhere",
    ),
    Entry(
        "inner-directory",
        _I,
        "a directory inside a channel directory",
        "somebody put it there",
        "it ignores it",
        "move it elsewhere",
    ),
    Entry(
        "symlinked-channel",
        _W,
        "a symbolic link to a directory in the root",
        "channels moved to another disk",
        "it skips the channel at recovery, and appends to its files blindly when the channel is used again",
        "mount or copy the directory in place of the link",
    ),
    Entry(
        "case-collision",
        _W,
        "channel names that differ by letter case only",
        "allowed before 0.25",
        "it recovers both; a copy to a file system that ignores case merges them",
        "migrate one under another name",
    ),
    Entry(
        "witness-present",
        _I,
        "the last start used the truncate option (.truncate.lck)",
        "-file_truncate_bad_eof was given",
        "it refuses another start with the option; a start without removes it",
        "start once without the option",
    ),
    Entry(
        "raft-log",
        _I,
        "a raft log of a clustered node",
        "the node ran in a cluster",
        "clients and subscriptions of a clustered node live there, not in clients.dat and subs.dat",
        "keep it beside the store",
    ),
    Entry(
        "archived-slices",
        _I,
        "archived slices (.bak) lie in the channel directory",
        "an archive script left them",
        "it never reads them",
        "`stantools messages --archived` reads them in place",
    ),
    # Logs
    Entry(
        "log-torn",
        _E,
        "clients.dat or subs.dat ends inside a record",
        _CRASH,
        "it refuses to start; with its truncate option it cuts the file there",
        _FORECAST + "; or " + _SALVAGE,
    ),
    Entry(
        "log-zeros",
        _W,
        "zero bytes stand where a record should begin",
        _CRASH,
        "it cuts the file there without a word, whatever follows",
        _FORECAST + "; or " + _SALVAGE,
    ),
    Entry(
        "log-damaged",
        _E,
        "a damaged record in clients.dat or subs.dat",
        _BITROT,
        "it refuses to start, also with its truncate option",
        _SALVAGE,
    ),
    Entry(
        "log-unknown-type",
        _E,
        "a record of a type that no server writes",
        _BITROT,
        "it refuses to start",
        _SALVAGE,
    ),
    Entry(
        "log-dangling-header",
        _W,
        "the file ends with a record header and nothing behind it",
        _CRASH,
        "it takes that for the end; later records are appended behind it and the next start fails",
        "run `stantools truncate-bad-eof` or `stantools salvage`",
    ),
    Entry(
        "subs-missing",
        _W,
        "a channel has no subs.dat",
        "a partial copy, or a crash when the channel was made",
        "it starts with no subscriptions on the channel: durables are lost without a word",
        "put the file back from a copy, if there was one",
    ),
    Entry(
        "ghost-durable-queue",
        _W,
        "a durable queue member whose client is unknown",
        "clients.dat was lost or cut",
        "it deletes the member at start; the group's position can be lost with it",
        _SALVAGE,
    ),
    Entry(
        "orphan-subscription",
        _I,
        "a plain subscription whose client is unknown",
        "a crash between two writes",
        "it drops it from memory and keeps it in the file, where it counts against the limit",
        "`stantools compact` removes it",
    ),
    # Slices
    Entry(
        "slice-name",
        _E,
        "a msgs.*.dat file whose number cannot be read",
        "somebody renamed or copied it",
        "it refuses to start",
        "move the file elsewhere, or rename it to a free number",
    ),
    Entry(
        "slice-torn",
        _E,
        "a data file ends inside a record",
        _CRASH,
        "it refuses to start if it reads the data file; with its truncate option it cuts it there",
        _FORECAST + "; or " + _SALVAGE,
    ),
    Entry(
        "slice-zeros",
        _W,
        "zero bytes where records should be in a data file",
        _CRASH,
        "whenever it must read the data file it cuts it there without a word, whatever follows",
        _FORECAST + "; or " + _SALVAGE,
    ),
    Entry(
        "slice-bad-payload",
        _E,
        "a message does not match its CRC",
        _BITROT,
        "with a good index it starts, and delivery stops for every subscriber at this message; without it refuses",
        _SALVAGE + " (--fill-gaps puts an empty message in its place)",
    ),
    Entry(
        "slice-bad-length",
        _E,
        "a record's length is wrong, its payload is whole",
        _BITROT,
        "with a good index it does not notice; without it refuses or cuts everything from there",
        _SALVAGE + "; the record is kept",
    ),
    Entry(
        "slice-bad-crc-field",
        _E,
        "a record's CRC field is wrong, its payload is whole",
        _BITROT,
        "as for a message that does not match its CRC",
        _SALVAGE + "; the record is kept",
    ),
    Entry(
        "slice-undecodable",
        _E,
        "a record's CRC is right, but it is no message",
        "another program wrote it",
        "it refuses to start if it reads the data file",
        _SALVAGE,
    ),
    Entry(
        "slice-garbage",
        _E,
        "bytes in which no record can be made out",
        _CRASH + "; " + _BITROT,
        "it refuses to start or stops reading there if it reads the data file; with a good index it does not notice",
        _SALVAGE,
    ),
    Entry(
        "slice-dangling-header",
        _W,
        "a data file ends with a record header and nothing behind it",
        _CRASH,
        "it takes that for the end; later messages are appended behind it and are lost at the next rebuild",
        "run `stantools truncate-bad-eof` or `stantools salvage`",
    ),
    # Indexes
    Entry(
        "index-missing",
        _W,
        "a slice has no index",
        _CRASH + ", or a failed start, which deletes it",
        "it scans the data file and writes a new index; any damage in the data then stops it",
        _FORECAST,
    ),
    Entry(
        "index-empty",
        _W,
        "an index holds only its file version although the slice has messages",
        "a failed start empties indexes",
        "it scans the data file, with a defect: damage there makes it fail",
        _FORECAST,
    ),
    Entry(
        "index-damaged",
        _W,
        "an index record is torn, zero or does not match its CRC",
        _CRASH,
        "torn or bad: it rebuilds the index from the data. Zero: it cuts the index there and the messages behind "
        "are no longer seen",
        _FORECAST,
    ),
    Entry(
        "index-mismatch",
        _E,
        "an index record disagrees with the data record it points to",
        _BITROT,
        "it goes by the index: a wrong message or an error is delivered",
        "run `stantools salvage` or `stantools compact`: indexes are rebuilt",
    ),
    Entry(
        "index-orphans",
        _W,
        "good messages that the index does not name",
        "a crash between data and index write",
        "it does not see them, appends behind them and gives their sequences again",
        _SALVAGE,
    ),
    Entry(
        "index-dangling",
        _E,
        "index records that point to no good message",
        "the data file lost its end, or is damaged there",
        "it rebuilds the index if the last one is affected; else delivery stops at these messages",
        _SALVAGE,
    ),
    Entry(
        "index-without-data",
        _W,
        "an index without its data file",
        "a crash while a slice was removed",
        "it ignores it, until the slice number is used again: then lookups go wrong",
        "move the index elsewhere",
    ),
    # Sequences
    Entry(
        "slice-missing",
        _W,
        "a slice number is missing, and with it the sequences between its neighbours",
        "a file was removed or not copied",
        "it starts; the messages are gone and consumers skip them",
        "find the file; else nothing to do",
    ),
    Entry(
        "sequence-missing",
        _I,
        "sequences between the first and the last that are not there at all",
        "a lost slice, a truncation, a repair, or a server before 0.9.2",
        "consumers skip them",
        "`stantools salvage --fill-gaps` puts empty messages in their place",
    ),
    Entry(
        "subscription-ahead",
        _W,
        "a subscription's position lies beyond the last message of its channel",
        "the newest messages were lost",
        "it gives the sequences again, and the subscription never gets those new messages",
        "`stantools salvage` sets such positions to the last message",
    ),
    Entry(
        "sequence-damaged",
        _E,
        "sequences whose record is damaged",
        _BITROT,
        "see the findings of the slice",
        _SALVAGE,
    ),
    Entry(
        "sequence-duplicate",
        _W,
        "the same messages are stored twice",
        "a copied slice",
        "it counts them twice; which one is read is not defined",
        "`stantools salvage` keeps one of each",
    ),
    Entry(
        "sequence-disorder",
        _W,
        "messages lie behind messages with higher sequences",
        "renamed or swapped slices",
        "lookups can fail",
        "`stantools salvage` writes them in order",
    ),
    Entry(
        "sequence-generations",
        _E,
        "sequences begin again: the channel holds several generations",
        "server.dat was lost and an older server started anew",
        "lookups fail or give messages of the wrong generation",
        "`stantools salvage` keeps every generation; choose with --generation",
    ),
    Entry(
        "sequence-superseded",
        _W,
        "sequences were given a second time after a crash",
        "messages that the index did not name were forgotten by the server",
        "it reads the newer ones, and the older ones if the index is lost",
        "`stantools salvage` keeps the newer ones in the channel and the older ones beside it",
    ),
    Entry(
        "sequence-zero",
        _W,
        "a message with sequence 0",
        "another program wrote it",
        "the channel cannot be delivered",
        _SALVAGE,
    ),
    Entry(
        "foreign-subject",
        _W,
        "messages of another channel",
        "slices were moved between channels",
        "it delivers them as if they belonged here",
        "`stantools salvage` moves them to their channel",
    ),
    Entry(
        "subject-invalid",
        _I,
        "a message whose subject is no legal channel name",
        "another program wrote it",
        "it delivers it on the directory's channel",
        _NOTHING,
    ),
)

CATALOGUE: dict[str, Entry] = {entry.code: entry for entry in _ENTRIES}


def finding(code: str, detail: str, *, severity: Severity | None = None, **place: Any) -> Finding:
    """Makes a finding of a catalogued code, with the catalogue's severity (unless given) and remedy.

    Args:
        code: A code of the catalogue.
        detail: What was found and what was expected.
        severity: If this case is better or worse than usual.
        **place: `file`, `offset`, `length`, `channel`, `seq` as in `Finding`.
    """
    entry = CATALOGUE[code]
    return Finding(code, severity or entry.severity, detail=detail, remedy=entry.remedy, **place)
