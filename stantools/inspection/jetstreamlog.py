"""Log lines of nats-server about its JetStream directory: meaning, and the command that helps.

Facts: jetstream-store.md sections 5, 7 and 13 to 21; lines of servers from 2.10 to 2.15.
"""

from __future__ import annotations

from typing import Final

from stantools.inspection.serverlog import LogLine, line_of

_VERIFY = "stop the server, copy the directory, then: `stantools verify STORE`"
_STOP = "stop the server now; what is on disk is intact: `stantools salvage STORE --out NEW` keeps it"
_REBUILD = (
    "The server reads all blocks instead, and cuts each one at its first damaged record, without a line in its log."
)

#: Lines that name a stream or a file, and are followed by the reason.
STREAM_WRAPPERS: Final = (
    line_of(
        r"Error recreating stream \"(?P<stream>.*?)\":",
        "the stream {stream} was not loaded. If the error is about its blocks, a server of 2.11 or later has "
        "deleted the "
        "whole directory of the stream, with all messages and consumers, or does so at the next start.",
        "a block that cannot be read or decompressed; a configuration that the server refuses",
        _STOP,
        "js-block-compressed",
        "js-block-unreadable",
        "js-meta-config",
    ),
    line_of(
        r"Error unmarshalling stream metafile \"(?P<file>.*?)\":",
        "{file} is no configuration that this server understands: the stream is skipped or offline; nothing is "
        "destroyed.",
        "damage, a missing meta.key, or a newer server wrote it",
        _VERIFY,
        "js-meta-json",
        "js-meta-unknown",
    ),
    line_of(
        r"Error unmarshalling consumer metafile \"(?P<file>.*?)\":",
        "{file} is no configuration that this server understands: the consumer is not loaded; from 2.11 on an unknown "
        "member takes the whole stream offline.",
        "damage, or a newer server wrote it",
        _VERIFY,
        "js-cons-meta",
        "js-meta-unknown",
    ),
    line_of(
        r"Error reading metafile \"(?P<file>.*?)\":",
        "{file} cannot be read: what lies there is no stream, or the server may not read it.",
        "a file among the directories of streams; permissions",
        _VERIFY,
        "js-meta-missing",
    ),
    line_of(
        r"Error decrypting our stream metafile:|Error decrypting our consumer metafile:",
        "a stream or consumer cannot be decrypted: it is not loaded, and its files stay untouched.",
        "another key, another account, or a damaged meta.key",
        "give the server the key that wrote the directory; `stantools verify STORE --encryption-key-env NAME` "
        "checks it",
        "js-key-wrong",
        "js-key-missing",
        decides=True,
    ),
    line_of(
        r"Received an error looking up message for consumer '(?P<consumer>.*?)':",
        "a message for the consumer {consumer} cannot be read. In 2.14 and 2.15 delivery stops here for good.",
        "damage in a block that a valid index.db has hidden",
        _STOP,
        "js-block-compressed",
        "js-block-hash",
        decides=True,
    ),
    line_of(
        r"Error adding consumer ['\"](?P<consumer>.*?)['\"]:",
        "the consumer {consumer} is not loaded.",
        "its position is damaged, or its stream is not loaded",
        "copy the directory before another start: 2.12 deletes such a consumer; then `stantools verify STORE`",
        "js-cons-state",
    ),
    line_of(
        r"Detected unsupported stream '(?P<stream>.*?)':|Stopping unsupported stream '(?P<stopped>.*?)'",
        "the stream {stream}{stopped} is offline: every request answers 500. Nothing is destroyed.",
        "a newer server wrote it, or a configuration has a member that this one does not know",
        "start the version that wrote it",
        "js-meta-unknown",
        "js-meta-level",
        decides=True,
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] loadBlock error:",
        "a block of the stream {stream} cannot be read; consumers stop there.",
        "a failing disk, permissions, or too many open files",
        _STOP,
        "js-block-unreadable",
        decides=True,
    ),
    line_of(
        r"Could not start metadata controller:|Can't start JetStream:",
        "the meta group of the cluster cannot be started; from 2.14 on the server ends. Nothing is destroyed.",
        "its snapshot is damaged",
        "keep a copy of the directory; look for a node with a good `$SYS`",
    ),
)

#: Whole lines, and reasons after one of the above.
STREAM_LINES: Final[tuple[LogLine, ...]] = (
    line_of(
        r"Missing stream metafile for \"(?P<file>.*?)\"|Missing stream checksum file \"(?P<sum>.*?)\"",
        "{file}{sum} is missing: the stream is skipped. All its messages are unreachable, and stay on disk untouched.",
        "a partial copy, or a removed file",
        _VERIFY,
        "js-meta-missing",
    ),
    line_of(
        r"Stream metafile \"(?P<file>.*?)\": checksums do not match",
        "meta.sum does not fit {file}: the stream is skipped. All its messages are unreachable, and stay on disk "
        "untouched. "
        "A new stream of the same name takes over the blocks, until the next restart.",
        "a power failure between both files, an edit by hand, a renamed or copied directory",
        _VERIFY,
        "js-meta-sum",
    ),
    line_of(
        r"Missing consumer (?:metafile|checksum for) \"(?P<file>.*?)\"",
        "{file} is missing: the consumer is not loaded, its files stay.",
        "a partial copy",
        "create the consumer again with the same name: its position counts then",
        "js-cons-meta",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Stream state (?:too short|checksum did not match|magic and version mismatch"
        r"|bad subject len|corrupt subject detected|block does not exist or index mismatch"
        r"|encountered internal inconsistency)",
        "index.db of the stream {stream} was rejected and removed. " + _REBUILD + " Deletions without a tombstone are "
        "forgotten, and sequences can be given again if the last block is lost too.",
        "a crash, or an upgrade or downgrade to a version with another index",
        _VERIFY,
        "js-index-hash",
        "js-index-version",
        "js-index-totals",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Stream state error reading encryption key",
        "index.db of the stream {stream} cannot be decrypted. " + _REBUILD,
        "another key, or a damaged meta.key",
        _VERIFY,
        "js-key-wrong",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Stream state detected prior state, could not locate msg block (?P<block>\d+)",
        "{block}.blk of the stream {stream} is not there: its messages count as deleted from now on, consumers may "
        "stand "
        "beyond the end.",
        "a removed file or a partial copy",
        "stop the server; look for a copy of {block}.blk, then: `stantools verify STORE`",
        "js-block-missing",
        "js-index-ahead",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Stream state outdated",
        "index.db of the stream {stream} is older than its blocks. " + _REBUILD,
        "the server was killed; this is harmless if the blocks are not damaged",
        _VERIFY,
        "js-index-stale",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Recovering stream state from index errored: (?:corrupt|prior) state file",
        "index.db of the stream {stream} is not used; the line before says why. " + _REBUILD,
        "a crash, or another version",
        _VERIFY,
        "js-index-stale",
        "js-index-hash",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] indexCacheBuf corrupt record state",
        "a block of the stream {stream} is damaged, and was cut at the damage just now: everything after it is lost on "
        "this server.",
        "damage that a valid index.db had hidden until a client read there",
        _STOP,
        "js-block-length",
        "js-block-cut",
    ),
    line_of(
        r"Filestore \[(?P<stream>.*?)\] Cache lookup detected no cache",
        "a block of the stream {stream} has no messages in memory, though index.db lists some; consumers may stop "
        "there.",
        "an empty or damaged block (2.10, 2.11)",
        _STOP,
        "js-block-empty",
    ),
    line_of(
        r"TTL state is outdated|Error decoding TTL state|Message scheduling state is outdated"
        r"|Error decoding message scheduling state",
        "the index of lifetimes or schedules is made again from the messages; nothing is lost.",
        "the server was killed",
        "",
        "js-ttl-index",
    ),
    line_of(
        r"JetStream consumer '(?P<consumer>.*?)' delivered sequence (?P<seq>\d+) "
        r"past last stream sequence of (?P<last>\d+)",
        "the consumer {consumer} was sent message {seq}, but the stream ends at {last}: the newest messages were "
        "lost. 2.14 and 2.15 set the consumer back; with others it never gets new messages up to that sequence.",
        "the last block was cut or lost",
        "stop the server; look for a newer copy of the last block, then: `stantools verify STORE`",
        "js-cons-ahead",
        "js-index-ahead",
    ),
    line_of(
        r"Detected orphaned stream '(?P<stream>.*?)', will cleanup",
        "the directory of the stream {stream} is being deleted: the cluster's meta group does not assign it to this "
        "server.",
        "`$SYS` was lost or restored from an older copy; the server's name changed; a stand-alone directory became "
        "a node",
        "stop the server at once; the raft logs in `$SYS/_js_` may still hold the messages of replicated streams",
    ),
    line_of(
        r"Detected orphaned durable consumer '(?P<consumer>.*?)', will cleanup",
        "the consumer {consumer} is being deleted: the cluster's meta group does not know it.",
        "`$SYS` was lost or restored from an older copy",
        "stop the server, and copy the directory",
    ),
    line_of(
        r"RAFT \[.*?\] Snapshot corrupt|raft: snapshot corrupt",
        "a snapshot of a raft group is damaged. Up to 2.12 the group goes on without it, and streams can become "
        "orphans, "
        "which are deleted after 30 seconds.",
        "a full disk or a power failure",
        "stop the server, and copy the directory of each node",
    ),
    line_of(
        r"Restoring partial batch write for stream '(?P<stream>.*?)'",
        "an atomic batch that had begun to be written into the stream {stream} is completed; nothing is lost.",
    ),
    line_of(
        r"Catchup for stream '(?P<stream>.*?)' resetting first sequence|Error applying stream entries to '(?P<to>.*?)'",
        "this node copies the stream {stream}{to} from its leader.",
        "its directory was lost or is behind",
        "wait until the replicas agree; check with `nats stream report`",
    ),
    line_of(
        r"Failed to install snapshot for '(?P<what>.*?)'",
        "the raft group of {what} could not write a snapshot; nothing is lost.",
        "the server was stopping",
    ),
    line_of(
        r"JetStream cluster (?:stream|consumer) '(?P<what>.*?)' has NO quorum"
        r"|JetStream has not established contact with a meta leader",
        "too few nodes of the cluster run: requests get no answer. Nothing is deleted meanwhile.",
        "nodes are down or cannot reach each other",
        "start the other nodes",
    ),
    line_of(
        r"replicas > 1 not supported in non-clustered mode",
        "a stream of a cluster was given to a server by itself, which does not load it; nothing is destroyed.",
        "one node's directory was copied",
        "give it to a cluster with the other nodes; `stantools salvage STORE --out NEW` keeps the messages",
    ),
    line_of(
        r"duplicates window can not be larger then max age",
        "the configuration has a duplicate window longer than its maximum age; nothing is destroyed.",
        "an edit by hand, or a server that checked less",
        "",
        "js-meta-config",
    ),
    line_of(
        r"s2: corrupt input|error reading compression reader",
        "a compressed block does not decompress.",
        "a bad disk, or 2.10 erased a message in it at a wrong place",
        _STOP,
        "js-block-compressed",
        "js-block-erase-bug",
    ),
    line_of(
        r"malformed or corrupt message in (?P<block>\d+\.blk)",
        "a record of {block} does not match its hash.",
        "a bad disk, bad memory or a bad copy",
        _STOP,
        "js-block-hash",
    ),
    line_of(
        r"Detected bad subject",
        "the configuration has a subject that this server refuses; it repairs the list or does not load the stream.",
        "an older server accepted it",
        _VERIFY,
        "js-meta-config",
    ),
    line_of(
        r"json: unknown field (?P<member>\S+)",
        "the member {member} is unknown to this version; the stream is offline, and nothing is destroyed.",
        "a newer server wrote it",
        "start the version that wrote it",
        "js-meta-unknown",
    ),
    line_of(
        r"error creating store for consumer: corrupt state file",
        "the position of the consumer, o.dat, is damaged.",
        "a power failure while it was written",
        "copy the directory before another start: 2.12 deletes such a consumer",
        "js-cons-state",
    ),
    line_of(
        r"stream not valid",
        "its stream is offline, so that no consumer is loaded; nothing is destroyed.",
        "see the lines before",
    ),
    line_of(
        r"no message cache|message block data missing|msgs/\d+\.blk: is a directory|msgs/\d+\.blk: no such file",
        "a block of the stream cannot be read.",
        "a failing disk, a foreign file, or files of another user",
        _STOP,
        "js-block-unreadable",
    ),
    line_of(
        r"runtime error: slice bounds out of range",
        "a server of 2.10 or 2.11 ended because of a damaged record: a tombstone that claims to have headers (at every "
        "start), or a size of headers that is too large (whenever the message is read).",
        "one flipped bit in a block",
        _STOP,
        "js-block-length",
        "js-border",
    ),
)
