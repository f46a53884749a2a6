"""The server's log lines about its file store: meaning, cause, and the command that helps.

Facts: filestore.md sections 1.4, 4.3, 5, 7, 9 and 11. The first argument of an entry matches text in the log. A
fatal error is often several nested texts; each level has an entry of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LogLine:
    pattern: re.Pattern[str]  #: matches the text anywhere in a line
    meaning: str
    cause: str = ""  #: usual cause
    remedy: str = ""  #: next step
    codes: tuple[str, ...] = ()  #: findings of `stantools verify` for it
    #: Its remedy holds whatever reason follows in the line; otherwise the reason determines the remedy.
    decides: bool = False
    aside: bool = False  #: part of a description that says nothing about the store by itself


def line_of(pattern: str, meaning: str, cause: str = "", remedy: str = "", *codes: str, **more: bool) -> LogLine:
    return LogLine(re.compile(pattern), meaning, cause, remedy, codes, **more)


_CRASH = "a crash or power failure while the file was being written"
_LOOK = "stop the server, then: `stantools doctor STORE`"
_MERGE = "`stantools merge NODE... --out NEW` combines the data of all nodes"
_SALVAGE = "`stantools salvage STORE --out NEW` keeps every intact record"
_CUT = (
    "`stantools truncate-bad-eof STORE --dry-run` shows what the server's repair would cut; "
    "`stantools salvage STORE --out NEW` keeps the records after the damage"
)
_REPORT = "see the lines around it; this one only describes the first bad record"

#: Errors that name the file that could not be recovered. The reason follows in the same line.
WRAPPERS = (
    line_of(
        r"unable to recover server file ",
        "server.dat could not be read, so the server does not start. Its truncate option does not repair this file.",
        "",
        _SALVAGE + " and writes a new server.dat",
        "server-damaged",
    ),
    line_of(
        r"unable to recover client file ",
        "clients.dat could not be read, so the server does not start.",
        "",
        _SALVAGE,
        "log-torn",
        "log-damaged",
    ),
    line_of(
        r"unable to recover subscription store for \[(?P<channel>.*?)\]",
        "subs.dat of the channel {channel} could not be read, so the server does not start.",
        "",
        _SALVAGE,
        "log-torn",
        "log-damaged",
    ),
    line_of(
        r"unable to recover message store for \[(?P<channel>.*?)\]\(file: ",
        "a message slice of the channel {channel} could not be read, so the server does not start. The file it "
        "names is the last one it opened, not always the bad one; `stantools verify STORE --channel CHANNEL` names "
        "file and offset. It may just have deleted that slice's index.",
        "",
        _SALVAGE,
        "slice-torn",
        "slice-bad-payload",
        "index-missing",
    ),
    line_of(
        r"Error with index file .* Truncating and recovering from data file",
        "an index did not fit its data file. The server emptied it and reads the whole data file instead; any "
        "damage there now stops the start.",
        _CRASH,
        _LOOK,
        "index-damaged",
        "index-dangling",
        decides=True,
    ),
    line_of(
        r"Verification of last message for file .* failed:",
        "the last record that the index names is not in the data file as it should be.",
        "the data file lost its end, or is damaged there",
        _LOOK,
        "index-dangling",
        "slice-torn",
        decides=True,
    ),
    line_of(
        r"Error looking up message (?P<place>[^ ]+) \(",
        "the message {place} could not be read. Delivery on this channel stops at it for every subscriber.",
        "damage in the middle of a data file, which the server does not notice at start; or a wrong encryption key",
        "`stantools verify STORE --channel CHANNEL` says what is intact; `stantools salvage STORE --out NEW "
        "--fill-gaps` puts an empty message in its place, so that consumers continue",
        "slice-bad-payload",
        "index-mismatch",
        decides=True,
    ),
    line_of(
        r"Error getting message for redelivery subid=(?P<sub>\d+), seq=(?P<seq>\d+)",
        "message {seq}, not acknowledged by subscription {sub}, could not be read for redelivery. It stays pending.",
        "damage in the middle of a data file",
        "`stantools verify STORE` says what is intact; `stantools subs STORE` lists what is pending",
        "slice-bad-payload",
        decides=True,
    ),
    line_of(
        r"Server file .* corrupted:",
        "server.dat is damaged; the server does not start.",
        "",
        _SALVAGE + " and writes a new server.dat",
        "server-damaged",
    ),
    line_of(
        r"Corrupted record in file (?P<file>\".*?\")",
        "a record in {file} does not match its CRC. The server never starts with it, also not with its truncate "
        "option.",
        "",
        _SALVAGE,
        "slice-bad-payload",
        "log-damaged",
    ),
)

#: Reasons and single lines.
LINES = (
    line_of(
        r"unable to verify file version: EOF",
        "the file is empty: not even its 4-byte file version is there.",
        "a crash between creating the file and writing its header",
        _SALVAGE,
        "file-version",
    ),
    line_of(
        r"unable to verify file version: unexpected EOF",
        "the file has 1 to 3 bytes, not even its file version.",
        _CRASH,
        _SALVAGE,
        "file-version",
    ),
    line_of(
        r"unsupported file version: (?P<version>\d+)",
        "the file begins with version {version}; every file of a store begins with version 1.",
        "a bad disk or copy, or a file of another program",
        _SALVAGE,
        "file-version",
    ),
    line_of(
        r"incorrect file size, expected (?P<want>\d+) bytes, got (?P<have>\d+) bytes",
        "server.dat has {have} bytes and must have {want}: something follows its only record.",
        _CRASH,
        _SALVAGE,
        "server-damaged",
    ),
    line_of(
        r"corrupted data, expected crc to be (?P<want>0x[0-9a-f]+), got (?P<have>0x[0-9a-f]+)",
        "a record's bytes do not match its CRC (stored {want}, computed {have}). If it is server.dat and "
        "everything else reads well, the server may just use another -file_crc_poly than the store.",
        "a bad disk, memory or copy; or another CRC polynomial",
        "`stantools info STORE` shows the store's polynomial; " + _SALVAGE,
        "slice-bad-payload",
        "log-damaged",
        "server-damaged",
    ),
    line_of(
        r"end of file padded with zeros",
        "zero bytes are where a record should begin.",
        "a file system that kept the size and lost the blocks, after a power failure",
        _LOOK,
        "slice-zeros",
        "log-zeros",
    ),
    line_of(
        r"invalid client record type: (?P<type>\d+)",
        "clients.dat holds a record of type {type}; there are only 1 and 2.",
        "the record header is damaged: no CRC covers it",
        _SALVAGE,
        "log-unknown-type",
    ),
    line_of(
        r"unexpected record type: (?P<type>\d+)",
        "subs.dat holds a record of type {type}; there are only 1 to 5.",
        "the record header is damaged: no CRC covers it",
        _SALVAGE,
        "log-unknown-type",
    ),
    line_of(
        r"message log has an invalid name: (?P<name>\S+)",
        "{name} looks like a message slice, but there is no number in its name.",
        "a slice was renamed or copied inside the channel directory",
        "stantools verify STORE says whether it holds messages that are nowhere else: then salvage; otherwise "
        "move the file out of the channel directory",
        "slice-name",
        "slice-stray",
    ),
    line_of(
        r"Unexpected EOF for file (?P<file>\".*?\")",
        "{file} ends inside a record, or a record's length is damaged so that it seems to.",
        _CRASH,
        _CUT,
        "slice-torn",
        "log-torn",
    ),
    line_of(
        r"It is recommended that you make a copy of the whole datatstore",
        "advice that is worth following: the server's repair cannot be undone.",
        remedy=_CUT,
        aside=True,
    ),
    line_of(
        r"Restart with the ContinueOnUnexpectedEOF flag to truncate this file to this offset: (?P<offset>\d+)",
        "there is no flag of that name; -file_truncate_bad_eof is meant. It would cut the file at offset "
        "{offset} and lose everything after it, intact or not.",
        remedy=_CUT,
    ),
    line_of(
        r"Dataloss may occur\. Details about the first corrupted record",
        "a description follows.",
        "",
        _REPORT,
        aside=True,
    ),
    line_of(
        r"record (?:header|payload) expected to be (?P<want>\d+) bytes, only read (?P<have>\d+)",
        "only {have} of {want} bytes of the record are there.",
        _CRASH,
        _CUT,
        "slice-torn",
        "log-torn",
    ),
    line_of(r"Record (?:header|payload):$", "part of the description of a bad record.", "", _REPORT, aside=True),
    line_of(r"Follow instructions in documentation in order to recover", "general advice.", "", _SALVAGE, aside=True),
    line_of(
        r"File (?P<file>\".*?\") has been truncated to offset: (?P<offset>\d+)",
        "the server cut {file} to {offset} bytes, because it was started with -file_truncate_bad_eof. The "
        "bytes after that are lost.",
        "",
        "if you have a copy from before: `stantools salvage COPY --out NEW`",
    ),
    line_of(r"Recovery resumes\.\.\.", "the server continues at the cut.", aside=True),
    line_of(
        r"unable to repair file .* by truncating at offset",
        "the truncate option found the place but could not cut the file.",
        "permissions, or a read-only file system",
        "check permissions, then: `stantools truncate-bad-eof STORE --dry-run`",
    ),
    line_of(
        r"file store should not be opened consecutively with the TruncateUnexpectedEOF option",
        "the server was started with -file_truncate_bad_eof twice in a row, which it refuses.",
        "the option was left in the start script; .truncate.lck in the store's root is the witness",
        "start once without the option, or run `stantools forecast STORE` to see whether that works",
        "witness-present",
    ),
    line_of(
        r"file already closed",
        "a defect of the server: with an index that holds only its header it tries to repair the wrong file. The "
        "index is gone now, so the next start takes another path.",
        "a failed start before, which emptied the index",
        _LOOK,
        "index-empty",
    ),
    line_of(
        r"unable to read last record: EOF|unable to set position to",
        "the index is ahead of its data file: the last record it names lies beyond the file's end.",
        _CRASH,
        _LOOK,
        "index-dangling",
    ),
    line_of(
        r"last message (?:size|sequence) in index is (?P<index>\d+), data file is (?P<data>\d+)"
        r"|expected record size to be (?P<want>\d+) bytes, got (?P<have>\d+) bytes",
        "index and data file disagree about the last message.",
        "the index is damaged or belongs to another data file",
        _LOOK,
        "index-mismatch",
    ),
    line_of(
        r"expected size to be (?P<want>\d+),? (?:bytes, )?got (?P<have>\d+)",
        "the index says that a message has {want} bytes, the data file says {have}.",
        "the index is damaged or stale",
        "`stantools salvage STORE --out NEW` writes new indexes",
        "index-mismatch",
    ),
    line_of(
        r"cluster ID (?P<given>\".*?\") does not match recovered value of (?P<stored>\".*?\")",
        "the store belongs to the cluster {stored}, the server was started with {given}.",
        "another configuration file or directory than meant",
        "start the server with -cid and the stored name; `stantools info STORE` shows it",
    ),
    line_of(
        r"Server information was not recovered, however channels are present",
        "server.dat was lost or empty; the server (0.25 and later) writes a new one with the cluster id it was "
        "started with, right or wrong, and continues.",
        "a crash at the first start, or a partial copy",
        "compare the cluster id with what clients use",
        "server-missing",
    ),
    line_of(
        r"No recovered state",
        "the server found nothing and starts empty. If there were channels (before 0.25, when server.dat is "
        "lost): stop it now, before a client publishes; sequences would begin at 1 again in the old files.",
        "a new store, a wrong -dir, or a lost server.dat",
        "`stantools doctor STORE`",
        "server-missing",
        "sequence-generations",
    ),
    line_of(r"Recovered (?P<count>\d+) channel\(s\)", "the server has read its store: {count} channel(s)."),
    line_of(
        r"Not recovering ghost durable queue subscriber: \[(?P<client>.*?)\]:\[(?P<group>.*?)\] "
        r"subject=(?P<channel>\S+)",
        "the durable queue member {group} of client {client} on {channel} was deleted, because the client is not "
        "in clients.dat. If it was the last one, the group's position is lost.",
        "clients.dat was lost or cut",
        "from a copy made before: `stantools salvage COPY --out NEW` keeps the group",
        "ghost-durable-queue",
        "clients-missing",
    ),
    line_of(
        r"Duplicate shadow durable queue consumer \(subid=(?P<sub>\d+)\)",
        "a durable queue group was stored as closed twice (subscription {sub}); the further one counts.",
        "a crash while the group's last member was closing",
        "no action is needed; `stantools subs STORE --channel CHANNEL` shows both",
    ),
    line_of(
        r"Reached limits for store (?P<channel>\".*?\")",
        "the channel {channel} is full: for each new message the oldest is dropped from now on. Logged once only.",
        "the channel's limits of messages or bytes",
        "raise the limits if the messages are needed: those still on disk come back at the next start",
    ),
    line_of(
        r"Skip expiration of missing sequence (?P<seq>\d+)",
        "sequence {seq} is not in the store; it was skipped when old messages expired.",
        "a gap left by lost or truncated files, or by servers before 0.9.2",
        "`stantools verify STORE` lists the gaps",
        "sequence-missing",
    ),
    line_of(
        r"ft: unable to get store lock at this time, going back to standby",
        "another server of the fault-tolerance group is active on this store.",
        remedy="normal in fault-tolerant mode; a standalone server takes no lock, so two of those can still collide",
    ),
    line_of(
        r"ft: error attempting to get the store lock: (?:ft: fatal error getting the store lock: )?(?P<error>.*)",
        "a server on standby cannot even try to become the active one: {error}. It keeps trying.",
        "the shared directory is not mounted, or its lock service does not work",
        "mount the directory; `touch DIR/.rootdir.lck` as the server's user shows whether it can be written",
    ),
    line_of(
        r"ft: serverID (?P<server>\".*?\") claims to be active, aborting",
        "two servers of a fault-tolerance group were active on one store; this one, active for a shorter time, ended.",
        "the lock file was removed, or the file server gave the lock away while its holder was cut off",
        f"stop the group and check the data that both have written: `stantools doctor STORE`; {_SALVAGE}",
    ),
    line_of(
        r"ft: serverID (?P<server>\".*?\") claims to be active",
        "two servers of a fault-tolerance group are active on one store; the other one should end by itself.",
        "the lock file was removed, or the file server gave the lock away while its holder was cut off",
        f"make sure that the other one has ended, then check the store: `stantools doctor STORE`; {_SALVAGE}",
    ),
    line_of(
        r"ft: the store is in use by the group (?P<group>\".*?\"), this server belongs to the group (?P<own>\".*?\")",
        "the directory belongs to the fault-tolerance group {group}; a server of the group {own} does not join.",
        "two groups were given the same directory, or one of its servers another name",
        "give all servers of a directory the same `ft_group`",
    ),
    line_of(
        r"Unable to send FT heartbeat: (?P<error>.*)",
        "the active server of a fault-tolerance group has no connection to NATS: {error}. It stays active.",
        remedy="check the NATS server; the others cannot take over as long as this one has the lock",
    ),
    line_of(
        r"cannot restart server in clustered mode if it was not previously clustered",
        "the store was written by a standalone server; a clustered one does not take it over.",
        remedy="start it standalone, or begin a new store and replay the messages",
    ),
    line_of(
        r"failed to load any existing snapshots",
        "no snapshot in the node's Raft directory is usable, and it does not start without one.",
        "a crash or bit rot; or files of different nodes or times were put together",
        f"`stantools verify NODE` lists the damage of each; {_MERGE}",
        "snapshot-damaged",
    ),
    line_of(
        r"log not found",
        "an entry is missing in the node's Raft log, after the end of its newest usable snapshot.",
        "a page of raft.log that was lost or not written, or a snapshot that is damaged or was removed",
        f"`stantools verify NODE` names the entries; {_MERGE}",
        "raft-gap",
        "raft-start-missing",
    ),
    line_of(
        r"failed to get all reachable pages|fatal error: fault",
        "a page of the node's raft.log is damaged or cut off.",
        "a crash, a full disk, or a copy that is not whole",
        f"`stantools verify NODE` names the pages; {_MERGE}",
        "raft-page",
    ),
    line_of(
        r"streaming state was recovered but cluster log path (?P<path>\".*?\") is empty",
        "the node has its data directory and no Raft log at {path}.",
        "the Raft directory was lost, or the server was started in another working directory",
        f"look for the old Raft directory first; {_MERGE}",
    ),
    line_of(
        r"unable to restore messages",
        "the node asked the leader for messages that its snapshot names and its store lacks, and did not get them.",
        "its data directory was restored from an older copy, or no leader has these messages",
        f"start it when a leader with all messages runs; {_MERGE}",
        "store-behind-snapshot",
    ),
    line_of(
        r"rejecting channel (?P<new>\".*?\") because channel (?P<old>\".*?\") alreay exists",
        "a client used {new}, which differs from {old} by letter case only.",
        "a spelling mistake in a client",
        "use one spelling",
        "case-collision",
    ),
    line_of(
        r"trying to decrypt data that is not \(len=(?P<size>\d+)\)",
        "a message of {size} bytes begins like an encrypted one and is too short to be one: it was stored before "
        "encryption was turned on.",
        "encryption was turned on for a store with older messages",
        "`stantools messages STORE CHANNEL` without a key shows the bytes as they are",
    ),
    line_of(
        r"(?:cipher|chacha20poly1305): message authentication failed",
        "a message cannot be decrypted: the key is wrong, or the message is damaged, or was never encrypted.",
        "another key than the one the messages were stored with",
        "`stantools messages STORE CHANNEL --encryption-key-env NAME` shows which messages a key opens",
    ),
    line_of(
        r"Messages of \d+ channel\(s\) may be encrypted",
        "the broker runs without encryption on a store whose messages have the shape of encrypted ones. If "
        "they are, clients receive unreadable payloads, and new messages are stored unencrypted.",
        "the store was written with -encrypt, and the broker was started without it",
        "`stantools doctor STORE --encryption-key-env NATS_STREAMING_ENCRYPTION_KEY` says whether the key of the old "
        "server opens them; then start with -encrypt and that key",
    ),
    line_of(
        r"encryption key required",
        "encryption is on and no key was given.",
        remedy="set NATS_STREAMING_ENCRYPTION_KEY or encryption_key",
    ),
    line_of(r"encryption cipher not supported", "the configured cipher is neither AES nor CHACHA."),
    line_of(
        r"proto: |illegal tag|wrong wireType|negative length found during unmarshaling",
        "a record whose CRC is right is not the message that should be there.",
        "another program wrote it, or the record's length is damaged",
        _SALVAGE,
        "slice-undecodable",
        "log-damaged",
    ),
    line_of(
        r"permission denied",
        "the server may not open the file; it needs to read and write every file of the store.",
        "the server was started once as another user, or files were copied as root",
        "give the files back to the server's user: `chown -R USER STORE`",
        "file-unreadable",
    ),
    line_of(
        r"mkdir .*: not a directory",
        "a channel is called like a file in the store's root, so its directory cannot be made.",
        "a channel named server.dat or the like",
        "use another channel name",
    ),
    line_of(r"no space left on device", "the disk is full.", "", "make room, then: `stantools verify STORE`"),
    line_of(
        r"too many open files",
        "the server reached its limit of open files.",
        "many channels",
        "raise ulimit -n, or set -file_fds_limit",
    ),
    line_of(
        r"too many channels",
        "a new channel was refused; the limit counts the channels of the whole store.",
        remedy="raise -max_channels (-mc); existing channels are not affected",
    ),
    line_of(
        r"too many subscriptions per channel",
        "a new subscription was refused. Dead ones in subs.dat count as well.",
        "the limit -msu; or subscriptions of clients that are gone",
        "`stantools subs STORE --channel CHANNEL` lists them; `stantools compact STORE --out NEW --drop-orphans` "
        "leaves dead ones out",
        "orphan-subscription",
    ),
    line_of(
        r"Error invoking archive script",
        "the archive script failed for a slice that the limits removed. It is not tried again; the .bak files "
        "stay in the channel directory.",
        "the script, or permissions",
        "archive the .bak files manually; `stantools messages STORE CHANNEL --archived` reads them",
        "archived-slices",
    ),
    line_of(r"Output of archive script for (?P<channel>\S+)", "a slice of {channel} was handed to the archive script."),
    line_of(
        r"Channel (?P<channel>\".*?\") has been deleted",
        "the channel {channel} was removed with all its messages, because it was unused for the time of -mi. "
        "Offline durables do not prevent that.",
    ),
    line_of(
        r"record size too big",
        "a record of a log would exceed 16 MiB; the server ends here.",
        "a subscription or client with enormous names",
    ),
    line_of(
        r"for FILE stores, root directory must be specified",
        "the server was started with a file store, and without a directory for it.",
        remedy="give -dir",
    ),
    line_of(
        r"limit cannot be negative|must be (?:a )?positive number|must at least be|must be at least"
        r"|crc polynomial should be between|too many channels defined|invalid channel name",
        "an option of the server has a value that it does not take.",
        remedy="correct the command line or the configuration file",
    ),
    line_of(
        r"unexpected EOF",
        "a file ends inside a record, or a record's length is damaged so that it seems to.",
        _CRASH,
        _CUT,
        "slice-torn",
        "log-torn",
        "index-damaged",
    ),
)
