"""The part of the catalogue about JetStream directories; "it" in `server` is nats-server.

Facts: jetstream-store.md sections 2 to 11 and 15 to 20, observed with servers of 2.9, 2.10, 2.11, 2.12, 2.14 and 2.15.
"""

from __future__ import annotations

from stantools.inspection.catalogue.finding_code import ERROR, INFO, WARNING, FindingCode

_SALVAGE = "do not start a server on it; `stantools salvage STORE --out NEW` keeps every intact message"
_COPY = "copy the directory before a server is started on it"
_SUM = _COPY + "; the messages are intact: `stantools repair STORE --dry-run` tells whether the checksum can be renewed"
_POWER = "a power failure or a full disk while the file was being written"
_BITROT = "a bad disk, bad memory or a bad copy"
_SKIPPED = "it logs one warning and skips the stream: all its messages are unreachable, and stay on disk"
_TRUNCATED = (
    "without a valid index.db every version cuts the block at this place, without a line in its log: all messages and "
    "tombstones after it are destroyed; with one, they stay until a client or the next start reads the block"
)
_POSITION = "a salvage rebuilds what can be known; otherwise create the consumer again with a start sequence"

META = (
    FindingCode(
        "js-meta-missing",
        ERROR,
        "meta.inf or meta.sum of a stream is missing",
        "a partial copy, or a file was removed",
        _SKIPPED,
        "look for a copy of the file; `stantools salvage STORE --out NEW` rebuilds it from what the blocks tell",
    ),
    FindingCode(
        "js-meta-sum",
        ERROR,
        "meta.sum does not fit meta.inf and the name of the directory",
        _POWER + " between the two files; an edit by hand; a renamed or copied directory",
        _SKIPPED + " (a clustered server writes both again and keeps the messages)",
        _SUM,
    ),
    FindingCode(
        "js-meta-json",
        ERROR,
        "meta.inf of a stream is no configuration",
        _POWER + "; " + _BITROT,
        _SKIPPED,
        "look for a copy of the file; `stantools salvage STORE --out NEW` rebuilds it from what the blocks tell",
    ),
    FindingCode(
        "js-meta-name",
        ERROR,
        "meta.inf names another stream than its directory",
        "a renamed or copied directory, whose checksum was renewed",
        "it opens an empty stream of the name in meta.inf; the messages in this directory are not read",
        "rename a copy of the directory to the name in meta.inf, and check it again",
    ),
    FindingCode(
        "js-meta-unknown",
        WARNING,
        "a configuration has a member that no server up to 2.15 knows",
        "a newer server wrote it, or an edit by hand",
        "up to 2.10 it ignores that; from 2.11 on the whole stream is offline, also for a consumer's member: every "
        "request answers 500; nothing is destroyed",
        "start the version that wrote it, or salvage: `stantools salvage STORE --out NEW` leaves such members out",
    ),
    FindingCode(
        "js-meta-level",
        WARNING,
        "a stream requires a higher level of the API than 2.15 has",
        "a newer server wrote it",
        "up to 2.10 it ignores that; from 2.11 on the stream is offline: requests answer 500; nothing is destroyed",
        "start the version that wrote it",
    ),
    FindingCode(
        "js-meta-config",
        WARNING,
        "a server refuses the configuration of a stream",
        "an edit by hand, or a server that checked less",
        "it logs one warning and does not load the stream; nothing is destroyed",
        "change the configuration in a copy; `stantools explain js-meta-sum` says what the checksum is over",
    ),
    FindingCode(
        "js-key-missing",
        ERROR,
        "the stream is encrypted, and no key was given",
        "the verb was called without the server's key",
        "without its key it does not load the stream, and leaves it untouched",
        "give the key of the server's configuration with --encryption-key-env or --encryption-key-file",
    ),
    FindingCode(
        "js-key-wrong",
        ERROR,
        "a key file is missing, damaged or sealed with another key",
        "the server's key was changed, the directory lies under another account, or the file is damaged",
        "it does not load the stream, and leaves it untouched",
        "look for the former key and the account's name; without this file what it seals is lost for good",
    ),
)

BLOCKS = (
    FindingCode(
        "js-block-hash", ERROR, "the hash of a record does not match its content", _BITROT, _TRUNCATED, _SALVAGE
    ),
    FindingCode(
        "js-block-length",
        ERROR,
        "the sizes of a record contradict each other",
        _BITROT,
        _TRUNCATED + "; 2.10 and 2.11 end with a panic if a tombstone claims to have headers",
        _SALVAGE,
    ),
    FindingCode(
        "js-block-cut",
        ERROR,
        "a block ends within a record",
        _POWER + ", or a partial copy",
        "it cuts the block at the record; tombstones that followed are lost, and deleted messages come back",
        _SALVAGE,
    ),
    FindingCode(
        "js-block-zeros",
        WARNING,
        "zeros follow the last record of a block",
        "a power failure: the size of the file was on disk, its content was not",
        "it cuts them off; messages and tombstones that were there are lost, as they are already",
        _COPY + "; look for a newer copy of the block",
    ),
    FindingCode(
        "js-block-tail",
        WARNING,
        "bytes that are no record follow the last record of a block",
        _POWER + "; another program appended them",
        "it cuts them off; if they were records, messages and tombstones are lost",
        _COPY,
    ),
    FindingCode(
        "js-block-empty",
        ERROR,
        "a block has no bytes",
        "a power failure soon after the block was begun, or a failed copy",
        "it removes the file without a valid index.db; with one, 2.10 and 2.11 may stop to deliver at this block",
        _SALVAGE + "; look for a copy of the block",
    ),
    FindingCode(
        "js-block-missing",
        ERROR,
        "a block with messages is not there, or its end is not",
        "a partial copy, a removed file, a cut by an earlier start of a server",
        "with 2.10 it counts the messages if index.db is valid, and fails to read them; otherwise the gap counts as "
        "deleted; if the last block is missing and index.db too, its sequences are given again",
        "look for a copy of the block, and put it back before a server is started",
    ),
    FindingCode(
        "js-block-number",
        ERROR,
        "a block has the records of another number, or of another stream",
        "a block was renamed or copied by hand, or came from lost+found",
        "no record fits the number: without a valid index.db it destroys the whole block",
        "rename it in a copy as the detail says; or `stantools salvage STORE --out NEW`, which reads it as it is",
    ),
    FindingCode(
        "js-block-order",
        WARNING,
        "sequences do not rise, or were given twice",
        "a server started after its last block was lost, and gave the sequences again; blocks of two copies were mixed",
        "from 2.11 on it ignores a sequence that is not above the last one; 2.10 counts it twice",
        "compare both messages with `stantools messages STORE STREAM`; a salvage keeps the first one",
    ),
    FindingCode(
        "js-block-unreadable",
        ERROR,
        "a block cannot be read",
        "a failing disk; a directory of that name; files of another user",
        "up to 2.12 it skips or removes the block (2.10 does not load the stream); 2.14 and 2.15 delete the whole "
        "stream if index.db is not valid, or if it is the last block",
        "do not start a server on it; copy what can be read, and check the disk",
    ),
    FindingCode(
        "js-block-compressed",
        ERROR,
        "a compressed block cannot be decompressed completely",
        _BITROT,
        "without a valid index.db up to 2.12 it removes the block, 2.14 and 2.15 delete the whole stream; with one, "
        "delivery stops at this block",
        _SALVAGE + " (also of such a block)",
    ),
    FindingCode(
        "js-block-erase-bug",
        WARNING,
        "a server of 2.10 erased a message in a compressed block at a wrong place",
        "a fault of 2.10: it writes to the place that the message has in the uncompressed block",
        "up to 2.12 it reads most of the block; 2.14 and 2.15 read nothing of it, and without a valid index.db they "
        "delete the whole stream",
        "do not upgrade with this directory; `stantools salvage STORE --out NEW` keeps every intact message",
    ),
    FindingCode(
        "js-block-key",
        ERROR,
        "the key of an encrypted block is missing, damaged or another one",
        "a partial copy; " + _BITROT,
        "it removes the block (and a damaged key) without a line in its log",
        "look for a copy of the key file: without it nobody can decrypt the block",
    ),
    FindingCode(
        "js-border",
        ERROR,
        "the size of a message's subject or headers is wrong, which the hash does not cover",
        _BITROT,
        "it serves the message with a wrong subject or wrong headers, without a warning; 2.10 ends with a panic if a "
        "size of headers is too large",
        _SALVAGE,
    ),
    FindingCode(
        "js-tombstones-lost",
        WARNING,
        "the records that delete messages may be lost",
        "they lie in the block that was the last one at that time, and it is damaged or missing",
        "when it rebuilds index.db, the deleted messages are back",
        "keep index.db with the blocks; a salvage uses the deletions that it knows",
    ),
)

INDEXES = (
    FindingCode(
        "js-index-hash",
        WARNING,
        "index.db is damaged, or of another stream",
        _POWER + "; " + _BITROT,
        "it removes the file and reads all blocks, which executes every damage in them; deletions without a tombstone "
        "are forgotten",
        _COPY,
    ),
    FindingCode(
        "js-index-version",
        WARNING,
        "index.db has a version that no server up to 2.15 writes",
        "a newer server wrote it",
        "it removes the file and reads all blocks",
        _COPY,
    ),
    FindingCode(
        "js-index-totals",
        WARNING,
        "the total of index.db is not the sum of its blocks",
        "a fault of the server that wrote it",
        "it removes the file and reads all blocks",
        _COPY,
    ),
    FindingCode(
        "js-index-stale",
        INFO,
        "index.db is older than the blocks",
        "the server was killed, or files were copied from it while it ran",
        "it reads all blocks, which executes every damage in them; otherwise nothing is lost",
        "nothing, if the blocks have no findings",
    ),
    FindingCode(
        "js-index-ahead",
        WARNING,
        "index.db knows later messages than the blocks have",
        "the end of the last block was lost, or index.db is of a newer copy",
        "it reads all blocks, and adds a tombstone so that no sequence is given again; consumers may stand beyond the "
        "messages that are left",
        "look for a newer copy of the last block before a server is started",
    ),
    FindingCode(
        "js-index-missing",
        INFO,
        "there is no index.db",
        "the server was killed; 2.9 writes none",
        "it reads all blocks, which executes every damage in them; otherwise nothing is lost",
        "nothing, if the blocks have no findings",
    ),
    FindingCode(
        "js-idx",
        INFO,
        "an index of a block of 2.9 is damaged or older than the block",
        "the server was killed; 2.9 also writes wrong numbers after a purge",
        "it reads the block; deletions that were not erased come back",
        "nothing, if the block has no findings",
    ),
    FindingCode(
        "js-ttl-index",
        INFO,
        "the index of lifetimes or schedules is missing, damaged or older than the messages",
        "the server was killed; " + _BITROT,
        "it reads the blocks again; a wrong entry is believed",
        "nothing: it is made again",
    ),
)

CONSUMERS = (
    FindingCode(
        "js-cons-meta",
        ERROR,
        "meta.inf or meta.sum of a consumer is missing or no configuration",
        _POWER + "; a partial copy",
        "it logs one warning and does not load the consumer; its files stay",
        "`stantools repair STORE --dry-run` tells whether the checksum can be renewed; else create the consumer again "
        "with the same name: its position in o.dat counts then",
    ),
    FindingCode(
        "js-cons-sum",
        INFO,
        "meta.sum of a consumer does not fit its meta.inf",
        "an edit by hand, or a copy under another name",
        "no version checks it",
        "nothing",
    ),
    FindingCode(
        "js-cons-state",
        WARNING,
        "the position of a consumer, o.dat, is missing, damaged or contradicts itself",
        _POWER + "; " + _BITROT + " (nothing protects the file)",
        "missing or empty: it delivers everything again; damaged: 2.10 loads it at an impossible position, 2.12 "
        "deletes the consumer, the others do not load it; impossible numbers are believed",
        _POSITION,
    ),
    FindingCode(
        "js-cons-ahead",
        WARNING,
        "a consumer stands beyond the last message of its stream",
        "the newest messages were lost",
        "up to 2.12 new messages up to that sequence are never delivered to it; 2.14 and 2.15 set it back",
        "look for the lost messages; " + _POSITION,
    ),
    FindingCode(
        "js-cons-lost",
        WARNING,
        "a work queue or interest stream has messages and no consumer",
        "the consumers' directory was lost",
        "the messages stay until a consumer is created and goes away again: then an interest stream removes them",
        "salvage before anybody subscribes: `stantools salvage STORE --out NEW`",
    ),
)

LEFTOVERS = (
    FindingCode(
        "js-delete-under-way",
        ERROR,
        "the directory of a stream that a server had begun to delete",
        "a stream was deleted, and the server ended meanwhile",
        "it removes the directory, without a line in its log",
        "if the stream was deleted by mistake, do not start a server; `stantools salvage STORE --out NEW` reads it",
    ),
    FindingCode(
        "js-purge-under-way",
        ERROR,
        "a purge that a server had begun",
        "the server ended within a purge",
        "it completes the purge: without `msgs` every version removes the old messages and forgets the last sequence; "
        "2.14 and 2.15 also put new blocks in place of `msgs`",
        "if the purge was a mistake, do not start a server; `stantools salvage STORE --out NEW` reads what is left",
    ),
    FindingCode(
        "js-leftover",
        WARNING,
        "a file or directory of an interrupted operation",
        "the server ended while it replaced a file",
        "up to 2.10 it takes `N.blk.tmp` for block N: its counts are too high, and messages cannot be read; others "
        "are ignored or removed",
        "move it out of the directory in a copy; a salvage uses the messages that are nowhere else",
    ),
    FindingCode(
        "js-foreign-file",
        INFO,
        "a file that no server writes",
        "a user or another program put it there",
        "up to 2.10 it does not load a stream with a file such as `7.blk.bak`; otherwise it ignores the file",
        "move it elsewhere",
    ),
    FindingCode(
        "js-orphan",
        ERROR,
        "a Raft log of a stream is on a node, and the stream's directory is not",
        "the cluster deleted the directory as an orphan, 30 seconds after a start without the right meta group; or it "
        "was left out of a copy",
        "it keeps the log, and does not serve the stream",
        "`stantools salvage STORE --out NEW` takes the messages from the logs, as far as they reach back",
    ),
    FindingCode(
        "js-nested",
        ERROR,
        "a store lies in the folder `jetstream` of another one",
        "it was copied a level too deep",
        "it starts without the streams, and without a warning",
        "move the inner folder a level up, in a copy",
    ),
)

#: Entries by heading of `docs/findings.md`.
STREAM_GROUPS = {
    "JetStream: configurations and keys": META,
    "JetStream: blocks": BLOCKS,
    "JetStream: indexes": INDEXES,
    "JetStream: consumers": CONSUMERS,
    "JetStream: leftovers": LEFTOVERS,
}
