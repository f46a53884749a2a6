"""Codes of findings in the directories of a cluster's nodes: Raft logs and snapshots."""

from __future__ import annotations

from stantools.inspection.catalogue.finding_code import BITROT, CRASH, ERROR, INFO, WARNING, FindingCode

_NODE = (
    "take the log from a copy of this node, or the state from another node of the cluster; "
    "`stantools merge NODE... --out NEW` takes the intact parts of each"
)
_AMNESIA = (
    "do not start this node before the directories of all nodes are copied: as a leader it makes the cluster "
    "forget data; "
    "give it the data directory of an intact node, or merge them: `stantools merge NODE... --out NEW`"
)
RAFT = (
    FindingCode(
        "raft-metas",
        ERROR,
        "both meta pages of a Raft log are damaged",
        CRASH + "; " + BITROT,
        "it refuses to start: checksum error, invalid database, or version mismatch",
        _NODE + "; `stantools records FILE` prints the entries that lie in its pages",
    ),
    FindingCode(
        "raft-meta",
        WARNING,
        "one of the two meta pages of a Raft log is damaged",
        CRASH + "; " + BITROT,
        "it starts with the other one: the log may end one transaction earlier, and the leader sends the rest",
        "no action is needed while other nodes are intact; keep a copy of the file",
    ),
    FindingCode(
        "raft-page",
        ERROR,
        "a page of a Raft log, or an element in it, cannot be read",
        "a file that was cut or copied in part; " + BITROT,
        "it panics at start (out of bounds, invalid type, or a bus error), or when it reads the page",
        _NODE + "; free pages may hold older copies: `stantools records FILE`",
    ),
    FindingCode(
        "raft-stale-page",
        ERROR,
        "a page of a Raft log holds keys that belong elsewhere",
        "a power failure: the page was not written, because servers do not sync this file by default",
        "it panics with `log not found` when it needs one of the entries that the page should hold",
        _NODE,
    ),
    FindingCode(
        "raft-gap",
        ERROR,
        "entries are missing in the middle of a Raft log",
        "a page that was lost or not written",
        "it panics with `log not found`",
        _NODE,
    ),
    FindingCode(
        "raft-start-missing",
        ERROR,
        "a Raft log begins after the end of the usable snapshots",
        "a snapshot that is damaged or was removed, after the log had been cut",
        "it panics with `log not found`, or refuses to start if no snapshot is usable",
        _NODE + ", or its snapshot",
    ),
    FindingCode(
        "raft-entry",
        ERROR,
        "an entry of a Raft log is not an entry, has another index than its key, or a lower term than one before",
        BITROT,
        "it panics at an entry that it cannot decode; another index or term it does not notice",
        _NODE,
    ),
    FindingCode(
        "raft-operation",
        ERROR,
        "a command in a Raft log cannot be decoded",
        BITROT + "; or the encryption key that was given is not the node's",
        "it ignores the command silently, so that this node alone lacks its effect; with a wrong key, or at an "
        "operation it does not know, it stops",
        _NODE + "; check the encryption key",
    ),
    FindingCode(
        "raft-encrypted",
        INFO,
        "commands in a Raft log are encrypted, and no key was given",
        "the node runs with encryption",
        "started without the key it ignores them silently: no clients, no subscriptions",
        "give the key: --encryption-key-env or --encryption-key-file",
    ),
    FindingCode(
        "snapshot-damaged",
        ERROR,
        "a Raft snapshot that a server skips",
        CRASH + "; " + BITROT,
        "it takes the next older one; if the log was cut after that one, it panics with `log not found`, and "
        "if there is "
        "no other it refuses to start: failed to load any existing snapshots",
        "take the snapshot from another node: snapshots of one index are equal",
    ),
    FindingCode(
        "snapshot-temporary",
        INFO,
        "a Raft snapshot that was being written when the server ended",
        "a crash",
        "it ignores the directory and never removes it",
        "no action is needed",
    ),
    FindingCode(
        "snapshot-channel-missing",
        ERROR,
        "a channel that the snapshot holds is not in the file store of the node",
        "the data directory was lost or restored in part, and the Raft directory was not",
        "it starts without the channel and its subscriptions; when it is elected, the cluster has lost both, and "
        "nodes that still have the channel delete it at the first message",
        _AMNESIA,
    ),
    FindingCode(
        "store-behind-snapshot",
        WARNING,
        "the file store ends before log and snapshot do, and the log no longer has all of the missing messages",
        "the data directory was restored from an older copy",
        "it asks the leader for the missing messages; without one that has them it aborts: unable to restore messages",
        "start it when a leader with all messages runs, or give it the data directory of such a node",
    ),
    FindingCode(
        "store-behind-log",
        INFO,
        "the log holds messages that the file store does not",
        "the node ended before it had applied them, or its data directory is an older copy",
        "it stores them once a leader reports that they are committed",
        "keep the Raft directory together with the store",
    ),
    FindingCode(
        "node-store-missing",
        WARNING,
        "a Raft directory without the file store of its node",
        "only a part was copied, or the data directory is elsewhere",
        "it creates an empty store; the messages that the snapshots cover are then lost, see snapshot-channel-missing",
        _AMNESIA,
    ),
)
