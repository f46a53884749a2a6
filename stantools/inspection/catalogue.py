"""The catalogue of finding codes: meaning, cause, behaviour of the real server, remedy.

Codes never change their meaning. `docs/findings.md` is generated from this table (`make docs`), and `stantools
explain CODE` prints an entry of it. Texts are parts of sentences: they begin with a small letter and end without a
full stop, and "it" in `server` is the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stantools.inspection.findings import Finding, Severity

_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True)
class FindingCode:
    code: str
    severity: Severity
    meaning: str
    cause: str  #: usual cause
    server: str  #: behaviour of the real server
    remedy: str


_SALVAGE = "run `stantools salvage STORE --out NEW`: it keeps every intact record"
_FORECAST = "run `stantools forecast STORE` before starting the server: a start can destroy data"
_CUT_OR_KEEP = (
    "`stantools truncate-bad-eof STORE --dry-run` shows what the server's own repair would cut; "
    "`stantools salvage STORE --out NEW` keeps every intact record"
)
_LOOK_OR_KEEP = (
    "`stantools forecast STORE` shows what a start would cut; `stantools salvage STORE --out NEW` keeps every intact "
    "record"
)
_CRASH = "a crash or power failure while the file was being written"
_BITROT = "a bad disk, bad memory or a bad copy; a manual edit of the file"

_STORE = (
    FindingCode(
        "archive-incomplete",
        _E,
        "an archive lacks a part of the store, or the part cannot be read",
        "a cut or damaged copy of the archive; links in it, which are not followed",
        "it is given the unpacked directory and knows nothing of the archive",
        "look for a complete copy of the archive; what can be read of this one is judged as it is",
    ),
    FindingCode(
        "server-missing",
        _E,
        "server.dat is missing or holds no record",
        "a crash at the very first start; a partial copy",
        "up to 0.24 it starts as if the store were empty, and new messages get sequences from 1 on again, in the old "
        "files; from 0.25 on it writes a new server.dat with the cluster id it was started with, and recovers",
        "do not start the server; " + _SALVAGE + " (--cluster-id names the cluster)",
    ),
    FindingCode(
        "server-damaged",
        _E,
        "server.dat cannot be read",
        _CRASH + "; " + _BITROT + "; or the CRC polynomial that was given is not the store's",
        "it refuses to start, even with its truncate option",
        _SALVAGE + " (server.dat is recreated, from its remains or from --cluster-id)",
    ),
    FindingCode(
        "clients-missing",
        _W,
        "clients.dat is missing",
        "a partial copy, or the file was removed",
        "it starts without clients: open durable queue groups are deleted with their position, plain subscriptions "
        "are dropped but stay in subs.dat",
        _SALVAGE + ", and the position of every durable and durable queue group",
    ),
    FindingCode(
        "file-unreadable",
        _E,
        "a file or directory cannot be read",
        "permissions, or a failing disk",
        "it refuses to start, if it runs as a user that cannot read and write the file either",
        "check permissions and the disk, then verify again",
    ),
    FindingCode(
        "file-version",
        _E,
        "a file does not begin with file version 1",
        "a crash between creating the file and writing its first bytes; a file of another program; " + _BITROT,
        "it refuses to start, even with its truncate option",
        _SALVAGE,
    ),
    FindingCode(
        "leftover-file",
        _I,
        "a temporary file of an interrupted compaction",
        "a crash during compaction",
        "it ignores the file and never removes it",
        "`stantools records FILE` shows its content; compare it with the file it was to replace, then delete it",
    ),
    FindingCode(
        "foreign-file",
        _I,
        "a file that does not belong to a store",
        "a user or another program put it there",
        "it ignores the file",
        "move it elsewhere",
    ),
    FindingCode(
        "foreign-directory",
        _W,
        "a directory in the root that holds no channel",
        "lost+found, a backup, or a channel whose creation was interrupted",
        "it takes every directory in the root for a channel and writes a subs.dat into it",
        "move it elsewhere",
    ),
    FindingCode(
        "inner-directory",
        _I,
        "a directory inside a channel directory",
        "a user or another program put it there",
        "it ignores the directory",
        "move it elsewhere",
    ),
    FindingCode(
        "symlinked-channel",
        _W,
        "a symbolic link to a directory in the root",
        "a channel was moved to another disk",
        "it does not recover the channel; when the channel is used again, it appends to the linked files "
        "without reading them",
        "mount or copy the directory in place of the link; `stantools salvage` follows the link",
    ),
    FindingCode(
        "case-collision",
        _I,
        "channel names that differ only in upper and lower case",
        "servers before 0.25 allowed that",
        "it recovers both",
        "keep the store off file systems that ignore case: there the two become one directory",
    ),
    FindingCode(
        "witness-present",
        _I,
        "the last start of the server used its truncate option (.truncate.lck)",
        "-file_truncate_bad_eof was given",
        "it refuses another start with the option; a start without it removes the file",
        "start it without the option",
    ),
    FindingCode(
        "raft-log",
        _I,
        "the raft log of a clustered node lies in the store",
        "the node ran in a cluster, with its log path below the store",
        "a clustered node keeps clients and subscriptions there, not in clients.dat and subs.dat",
        "leave it where it is, and keep a copy of it together with the store",
    ),
    FindingCode(
        "archived-slices",
        _I,
        "archived slices (.bak) lie in the channel directory",
        "an archive script left them there, or failed",
        "it never reads them",
        "`stantools messages STORE CHANNEL --archived` reads them in place, `stantools salvage --archived` "
        "includes them",
    ),
)

_LOGS = (
    FindingCode(
        "log-torn",
        _E,
        "clients.dat or subs.dat ends inside a record",
        _CRASH + "; or the length of a record is damaged, so that it reaches beyond the end",
        "it refuses to start; with its truncate option it cuts the file where that record begins",
        _CUT_OR_KEEP,
    ),
    FindingCode(
        "log-zeros",
        _W,
        "zero bytes are where a record should begin in clients.dat or subs.dat",
        _CRASH,
        "eight or more, it cuts the file there silently, whatever follows; fewer, it refuses to start",
        _LOOK_OR_KEEP,
    ),
    FindingCode(
        "log-damaged",
        _E,
        "a damaged record in clients.dat or subs.dat",
        _BITROT,
        "it refuses to start, even with its truncate option",
        _SALVAGE,
    ),
    FindingCode(
        "log-unknown-type",
        _E,
        "a record in clients.dat or subs.dat of a type that no server writes",
        _BITROT + "; no CRC covers the type",
        "it refuses to start, even with its truncate option",
        _SALVAGE,
    ),
    FindingCode(
        "log-dangling-header",
        _W,
        "clients.dat or subs.dat ends with a record header and nothing after it",
        _CRASH,
        "it takes that for the end; later records are appended after it, and the next start fails",
        _SALVAGE + " and leaves the header out",
    ),
    FindingCode(
        "subs-missing",
        _W,
        "a channel has messages and no subs.dat",
        "a partial copy, or a crash when the channel was made",
        "it starts with no subscriptions on the channel: durables are lost silently",
        "put the file back from a copy, if there is one; nothing else in the store knows the durables",
    ),
    FindingCode(
        "ghost-durable-queue",
        _W,
        "a member of a durable queue group whose client is unknown",
        "clients.dat was lost or cut; a crash while the client was closing",
        "it deletes the member at start; if it was the only one, the position of the group is lost",
        _SALVAGE + ", and the group keeps its position and its pending messages",
    ),
    FindingCode(
        "orphan-subscription",
        _I,
        "a subscription that is not durable and whose client is unknown",
        "clients.dat was lost or cut; a crash while the client was closing",
        "it drops it from memory and keeps it in the file, where it counts against the limit of subscriptions",
        "no action is needed; `stantools compact --drop-orphans` and `stantools salvage` leave it out",
    ),
    FindingCode(
        "subscription-ahead",
        _W,
        "a subscription's position lies beyond the last message of its channel",
        "the newest messages were lost",
        "it assigns those sequences to new messages, which this subscription never receives",
        "`stantools salvage STORE --out NEW` sets such positions back to the last message there is",
    ),
)

_SLICES = (
    FindingCode(
        "slice-name",
        _E,
        "a msgs.*.dat file whose number cannot be read",
        "a slice was renamed or copied inside the channel directory",
        "it refuses to start",
        "if its messages are in no other file (`slice-stray`), salvage keeps them; otherwise move the file elsewhere",
    ),
    FindingCode(
        "slice-stray",
        _W,
        "a file with messages of its own that the server does not treat as a slice",
        "a slice was renamed or copied",
        "it ignores the file, or refuses to start because of its name; it does not see the messages",
        _SALVAGE + ", also of such a file",
    ),
    FindingCode(
        "slice-missing",
        _W,
        "a slice number is missing, and with it the sequences between its neighbours",
        "a file was removed or not copied",
        "it starts; the messages are gone, and consumers skip them",
        "find the file; without it the messages cannot be restored",
    ),
    FindingCode(
        "slice-torn",
        _E,
        "a data file ends inside a record",
        _CRASH,
        "it refuses to start if it has to read the data file, and deletes the index; with its truncate option it cuts "
        "the file where that record begins",
        _CUT_OR_KEEP,
    ),
    FindingCode(
        "slice-zeros",
        _W,
        "zero bytes where records should be in a data file",
        _CRASH,
        "if it has to read the data file: eight or more, it cuts the file there silently, whatever follows; "
        "fewer, it refuses to start. With a good index it does not notice them, and appends after the zeros",
        _LOOK_OR_KEEP,
    ),
    FindingCode(
        "slice-dangling-header",
        _W,
        "a data file ends with a record header and nothing after it",
        _CRASH,
        "it takes that for the end; new messages are appended after it and are lost when the index is rebuilt",
        _SALVAGE + " and leaves the header out",
    ),
    FindingCode(
        "slice-bad-payload",
        _E,
        "a message does not match its CRC",
        _BITROT,
        "if the index is good and the message is not the last of its slice, it starts, and delivery on the channel "
        "stops at this message for every subscriber; otherwise it refuses to start and deletes the index",
        _SALVAGE + " (--fill-gaps puts an empty message in its place, so that consumers continue)",
    ),
    FindingCode(
        "slice-bad-length",
        _E,
        "the length of a record is wrong; its payload is whole",
        _BITROT + "; no CRC covers the length",
        "if the index is good and the message is not the last of its slice, it may not notice; otherwise it refuses to "
        "start, or with its truncate option cuts everything from there on",
        _SALVAGE + ", this one as well",
    ),
    FindingCode(
        "slice-bad-crc-field",
        _E,
        "the CRC of a record is wrong; its payload is whole",
        _BITROT,
        "as for a message that does not match its CRC",
        _SALVAGE + ", this one as well",
    ),
    FindingCode(
        "slice-undecodable",
        _E,
        "the CRC of a record is right, but it is not a message",
        "another program wrote it",
        "it refuses to start if it has to read the data file; otherwise delivery stops there",
        _SALVAGE,
    ),
    FindingCode(
        "slice-garbage",
        _E,
        "bytes in which no record can be recognised",
        _CRASH + "; " + _BITROT,
        "it refuses to start if it has to read the data file. If the index is good it does not notice bytes at the "
        "end, and stops delivery at bytes in the middle",
        _SALVAGE,
    ),
)

_INDEXES = (
    FindingCode(
        "index-missing",
        _W,
        "a slice has no index",
        _CRASH + "; or a failed start, which deletes the index",
        "it reads the whole data file and writes a new index; any damage in the data then stops the start",
        _FORECAST,
    ),
    FindingCode(
        "index-empty",
        _W,
        "an index holds only its file version although the slice has messages",
        "a crash before the first index record was written, or while the index was rebuilt",
        "it reads the whole data file; because of a defect, it fails at a torn end or zeros that it would "
        "cut otherwise",
        _FORECAST,
    ),
    FindingCode(
        "index-damaged",
        _W,
        "an index record is torn, zero, or does not match its CRC",
        _CRASH + "; " + _BITROT,
        "torn or wrong CRC: it rebuilds the index from the data file. Zeros: it cuts the index there, and no "
        "longer sees the messages after that",
        _FORECAST,
    ),
    FindingCode(
        "index-mismatch",
        _E,
        "an index record disagrees with the data record that it points to",
        _BITROT + "; an index that belongs to another data file",
        "it relies on the index: a wrong message is delivered, or delivery stops with an error",
        _SALVAGE + " and writes new indexes",
    ),
    FindingCode(
        "index-disorder",
        _E,
        "correct index records are in the wrong order",
        "a manual repair, or a copy assembled from parts",
        "it looks for a message at the place that its sequence implies, and before it: messages further on "
        "are not found, and read-ahead may return another message",
        _SALVAGE + " and writes new indexes",
    ),
    FindingCode(
        "index-orphans",
        _W,
        "good messages that the index does not name",
        "a crash between writing the data and writing the index",
        "it does not see them, appends after them and assigns their sequences to new messages",
        _SALVAGE,
    ),
    FindingCode(
        "index-dangling",
        _E,
        "index records that point to no good message",
        "the data file lost its end",
        "if the last index record is one of them it rebuilds the index from the data file; otherwise it starts, and "
        "delivery stops at these messages",
        _SALVAGE,
    ),
    FindingCode(
        "index-without-data",
        _W,
        "an index without its data file",
        "a crash while a slice was removed, or a data file that was lost",
        "it ignores the index until the slice number is used again; then new records are appended to the stale ones "
        "and lookups go wrong",
        "look for the data file; if it was removed on purpose, move the index elsewhere",
    ),
)

_SEQUENCES = (
    FindingCode(
        "sequence-missing",
        _I,
        "sequences between the first and the last without a message",
        "a lost slice, a truncation, a repair, or a server before 0.9.2",
        "consumers skip them",
        "no action is needed; `stantools salvage --fill-gaps` puts empty messages in their place",
    ),
    FindingCode(
        "sequence-damaged",
        _E,
        "messages of the channel with damaged records, if the findings of its slices do not name each",
        "see the findings of the slice",
        "see the findings of the slice",
        _SALVAGE,
    ),
    FindingCode(
        "sequence-duplicate",
        _W,
        "the same messages are stored twice",
        "a slice was copied under another number",
        "it counts them twice; which copy it reads is not defined",
        "`stantools salvage STORE --out NEW` keeps one of each",
    ),
    FindingCode(
        "sequence-disorder",
        _W,
        "messages are stored after messages with higher sequences",
        "slices were renamed or swapped",
        "lookups can fail",
        "`stantools salvage STORE --out NEW` writes them in order",
    ),
    FindingCode(
        "sequence-generations",
        _E,
        "sequences begin again: the channel holds messages of several generations",
        "server.dat was lost, and a server up to 0.24 started over in the old files",
        "lookups fail or return messages of the wrong generation",
        "`stantools salvage STORE --out NEW` keeps all generations, older ones as channels of their own; --generation "
        "chooses one",
    ),
    FindingCode(
        "sequence-superseded",
        _W,
        "older messages whose sequences were assigned to newer ones",
        "a crash: the server forgot messages that its index did not name, and assigned their sequences again",
        "it reads the newer ones, or the older ones if the index is lost",
        "`stantools salvage STORE --out NEW` keeps the newer ones in the channel and the older ones in a channel of "
        "their own",
    ),
    FindingCode(
        "sequence-zero",
        _W,
        "a message with sequence 0",
        "another program wrote it",
        "the channel cannot be delivered",
        _SALVAGE + " but this one",
    ),
    FindingCode(
        "foreign-subject",
        _W,
        "messages that belong to another channel",
        "slices were moved between channels",
        "it delivers them as if they belonged here",
        "`stantools salvage STORE --out NEW` moves them to their channel",
    ),
    FindingCode(
        "subject-invalid",
        _I,
        "messages whose subject is not a legal channel name",
        "another program wrote them",
        "it delivers them on the channel of the directory",
        "no action is needed",
    ),
)

_AGAIN = "delete the stream and migrate its channels again"
_LOOK_AT_NODES = (
    "`stantools merge NODE... --dry-run` says which one counts; name all nodes; `stantools records FILE` "
    "prints the entries of a raft.log"
)
_LOOK_AT_BOTH = "find out which of the two was changed; `stantools messages STORE CHANNEL` prints messages of a store"
_DELIVERS = "nats-server delivers the content of the stream; consumers cannot notice the difference"

_DIFFERENCES = (
    FindingCode(
        "stream-missing",
        _E,
        "a planned stream is missing",
        "it was never created, or was deleted; the connection belongs to another account",
        "nats-server knows nothing of it",
        "check server, account and domain; then migrate its channels",
    ),
    FindingCode(
        "stream-state",
        _E,
        "a stream has another number of messages, or another first or last sequence, than expected",
        "limits of the stream removed messages, clients published new ones, or a restore was cut short",
        "nats-server assigns the next message the sequence after the last one that it knows",
        _AGAIN + ", or look at its limits",
    ),
    FindingCode(
        "stream-config",
        _W,
        "a stream with another configuration than planned",
        "it was changed, or the plan was changed since",
        "it uses the configuration that it has",
        "update the stream, if the difference is not wanted; a backup has to be rewritten",
    ),
    FindingCode(
        "archive-damaged",
        _E,
        "a backup or a stream's directory that has changed since it was written",
        _BITROT + "; a copy that was cut short",
        "it skips the rest of a block after a damaged record, without an error; other damage makes a restore fail",
        "remove it and write it again from the store",
    ),
    FindingCode(
        "channel-missing",
        _E,
        "a channel that only the first of two stores has",
        "it was deleted, or never copied",
        "it knows nothing of the channel",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "channel-extra",
        _E,
        "a channel that only the second of two stores has",
        "it was made later",
        "it recovers the channel",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-missing",
        _E,
        "messages that are in the first place and not in the second",
        "they were removed by limits, deleted, or never copied",
        "consumers skip them",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-extra",
        _E,
        "messages that are in the second place and not in the first",
        "clients published them later, or another program put them there",
        "it delivers them like any other",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-payload",
        _E,
        "messages whose payload differs",
        "one of the two was rewritten, or encrypted payloads were decrypted on the way",
        _DELIVERS,
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-timestamp",
        _E,
        "messages whose time differs",
        "they were published again instead of being restored",
        "nats-server and the limits by age use the stored time",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-subject",
        _E,
        "messages whose subject differs",
        "another subject mapping, or another stream",
        "nats-server delivers them to subscribers of the stored subject",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-headers",
        _E,
        "messages whose headers do not carry the expected reply and origin",
        "another program migrated them, or with other options",
        _DELIVERS,
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-reply",
        _E,
        "messages whose reply subject differs",
        "one of the two was rewritten",
        "it delivers the reply subject that is stored",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "consumer-missing",
        _E,
        "a planned consumer is missing",
        "it was deleted, or was inactive for too long",
        "nats-server knows nothing of the durable's position",
        "migrate the stream again, or create the consumer manually at the position in the plan",
    ),
    FindingCode(
        "consumer-position",
        _E,
        "a consumer whose position differs from that of the durable",
        "clients have used it since; it was created manually; or a server that was down while a stream with "
        "replicas was loaded came back, became leader of the consumer and did not know its position (seen with 2.9)",
        "nats-server delivers from the consumer's position: messages come again, or never",
        "if no client has used it: " + _AGAIN,
    ),
    FindingCode(
        "consumer-config",
        _W,
        "a consumer with another configuration than planned",
        "it was updated",
        "nats-server uses the configuration that it has",
        "update the consumer, if the difference is not wanted",
    ),
    FindingCode(
        "subscription-differs",
        _E,
        "a subscription that only one of two stores has, or that differs between them",
        "clients used one of the stores meanwhile; a repair changed it",
        "it delivers from the subscription's position: messages come again, or never",
        "`stantools subs STORE` prints the subscriptions of a store",
    ),
    FindingCode(
        "client-differs",
        _W,
        "a client that only one of two stores has, or that differs between them",
        "clients used one of the stores meanwhile",
        "it waits for clients that it knows, and removes their subscriptions if they stay away",
        "`stantools clients STORE` prints the clients of a store",
    ),
    FindingCode(
        "server-differs",
        _I,
        "the identity of two stores differs",
        "they belong to different clusters, or server.dat was recreated",
        "clients have to connect with the cluster id in server.dat",
        "no action is needed",
    ),
    FindingCode(
        "entry-differs",
        _E,
        "an entry of which the Raft logs of two nodes have different copies with the same index and term",
        _BITROT + "; or they are nodes of different clusters",
        "it applies its own copy, so that its state differs from the others",
        _LOOK_AT_NODES,
    ),
    FindingCode(
        "entry-branch",
        _W,
        "entries of one node's Raft log that the other node has replaced by entries of a later term",
        "the node was the leader when it wrote them, and was replaced before a majority had them",
        "it discards them when it hears of the later leader",
        _LOOK_AT_NODES,
    ),
    FindingCode(
        "log-behind",
        _I,
        "the Raft log of one node ends before that of the other",
        "the node stopped earlier, or had not caught up",
        "the leader sends it the missing entries, or a snapshot",
        "no action is needed",
    ),
)

_NODE = (
    "take the log from a copy of this node, or the state from another node of the cluster; "
    "`stantools merge NODE... --out NEW` takes the intact parts of each"
)
_AMNESIA = (
    "do not start this node before the directories of all nodes are copied: as a leader it makes the cluster "
    "forget data; "
    "give it the data directory of an intact node, or merge them: `stantools merge NODE... --out NEW`"
)
_RAFT = (
    FindingCode(
        "raft-metas",
        _E,
        "both meta pages of a Raft log are damaged",
        _CRASH + "; " + _BITROT,
        "it refuses to start: checksum error, invalid database, or version mismatch",
        _NODE + "; `stantools records FILE` prints the entries that lie in its pages",
    ),
    FindingCode(
        "raft-meta",
        _W,
        "one of the two meta pages of a Raft log is damaged",
        _CRASH + "; " + _BITROT,
        "it starts with the other one: the log may end one transaction earlier, and the leader sends the rest",
        "no action is needed while other nodes are intact; keep a copy of the file",
    ),
    FindingCode(
        "raft-page",
        _E,
        "a page of a Raft log, or an element in it, cannot be read",
        "a file that was cut or copied in part; " + _BITROT,
        "it panics at start (out of bounds, invalid type, or a bus error), or when it reads the page",
        _NODE + "; free pages may hold older copies: `stantools records FILE`",
    ),
    FindingCode(
        "raft-stale-page",
        _E,
        "a page of a Raft log holds keys that belong elsewhere",
        "a power failure: the page was not written, because servers do not sync this file by default",
        "it panics with `log not found` when it needs one of the entries that the page should hold",
        _NODE,
    ),
    FindingCode(
        "raft-gap",
        _E,
        "entries are missing in the middle of a Raft log",
        "a page that was lost or not written",
        "it panics with `log not found`",
        _NODE,
    ),
    FindingCode(
        "raft-start-missing",
        _E,
        "a Raft log begins after the end of the usable snapshots",
        "a snapshot that is damaged or was removed, after the log had been cut",
        "it panics with `log not found`, or refuses to start if no snapshot is usable",
        _NODE + ", or its snapshot",
    ),
    FindingCode(
        "raft-entry",
        _E,
        "an entry of a Raft log is not an entry, has another index than its key, or a lower term than one before",
        _BITROT,
        "it panics at an entry that it cannot decode; another index or term it does not notice",
        _NODE,
    ),
    FindingCode(
        "raft-operation",
        _E,
        "a command in a Raft log cannot be decoded",
        _BITROT + "; or the encryption key that was given is not the node's",
        "it ignores the command silently, so that this node alone lacks its effect; with a wrong key, or at an "
        "operation it does not know, it stops",
        _NODE + "; check the encryption key",
    ),
    FindingCode(
        "raft-encrypted",
        _I,
        "commands in a Raft log are encrypted, and no key was given",
        "the node runs with encryption",
        "started without the key it ignores them silently: no clients, no subscriptions",
        "give the key: --encryption-key-env or --encryption-key-file",
    ),
    FindingCode(
        "snapshot-damaged",
        _E,
        "a Raft snapshot that a server skips",
        _CRASH + "; " + _BITROT,
        "it takes the next older one; if the log was cut after that one, it panics with `log not found`, and "
        "if there is "
        "no other it refuses to start: failed to load any existing snapshots",
        "take the snapshot from another node: snapshots of one index are equal",
    ),
    FindingCode(
        "snapshot-temporary",
        _I,
        "a Raft snapshot that was being written when the server ended",
        "a crash",
        "it ignores the directory and never removes it",
        "no action is needed",
    ),
    FindingCode(
        "snapshot-channel-missing",
        _E,
        "a channel that the snapshot holds is not in the file store of the node",
        "the data directory was lost or restored in part, and the Raft directory was not",
        "it starts without the channel and its subscriptions; when it is elected, the cluster has lost both, and "
        "nodes that still have the channel delete it at the first message",
        _AMNESIA,
    ),
    FindingCode(
        "store-behind-snapshot",
        _W,
        "the file store ends before log and snapshot do, and the log no longer has all of the missing messages",
        "the data directory was restored from an older copy",
        "it asks the leader for the missing messages; without one that has them it aborts: unable to restore messages",
        "start it when a leader with all messages runs, or give it the data directory of such a node",
    ),
    FindingCode(
        "store-behind-log",
        _I,
        "the log holds messages that the file store does not",
        "the node ended before it had applied them, or its data directory is an older copy",
        "it stores them once a leader reports that they are committed",
        "keep the Raft directory together with the store",
    ),
    FindingCode(
        "node-store-missing",
        _W,
        "a Raft directory without the file store of its node",
        "only a part was copied, or the data directory is elsewhere",
        "it creates an empty store; the messages that the snapshots cover are then lost, see snapshot-channel-missing",
        _AMNESIA,
    ),
)

#: Entries by heading of `docs/findings.md`.
GROUPS: dict[str, tuple[FindingCode, ...]] = {
    "The store as a whole": _STORE,
    "Clients and subscriptions": _LOGS,
    "Message slices": _SLICES,
    "Indexes": _INDEXES,
    "Sequences and subjects": _SEQUENCES,
    "Raft logs and snapshots of clustered nodes": _RAFT,
    "Differences": _DIFFERENCES,
}

CATALOGUE: dict[str, FindingCode] = {entry.code: entry for group in GROUPS.values() for entry in group}


def finding(code: str, detail: str, *, severity: Severity | None = None, **place: Any) -> Finding:
    """Makes a finding with the catalogue's remedy, and its severity unless one is given.

    `place` takes `file`, `offset`, `length`, `channel`, `seq` as in `Finding`.
    """
    entry = CATALOGUE[code]
    return Finding(code, severity or entry.severity, detail=detail, remedy=entry.remedy, **place)
