"""Codes of findings in SQL stores (docs/reference/sql-stores.md sections 3 to 8)."""

from __future__ import annotations

from stantools.inspection.catalogue.finding_code import ERROR, INFO, WARNING, FindingCode

_SALVAGE = "`stantools salvage STORE --out NEW` writes a file store with everything intact"
_BY_HAND = "rows changed or deleted by hand, a restore in part, or two servers on one database"
_EDIT = "a change by hand, or a bad disk or memory: rows have no checksum"

SQL = (
    FindingCode(
        "sql-dump-flawed",
        ERROR,
        "a dump ends early, or has a part that cannot be read",
        "the dump program was interrupted, or the file was cut or edited",
        "it is given the database and knows nothing of the dump",
        "make the dump again; what can be read of this one is judged as it is",
    ),
    FindingCode(
        "sql-table-missing",
        ERROR,
        "a table of the store is not in the dump",
        "the dump has only some tables, or its writer left out empty ones (--no-create-info, --data-only)",
        "it ends with `unable to prepare statement` if the table is not in the database",
        "dump all seven tables, with their definitions",
    ),
    FindingCode(
        "sql-server-missing",
        ERROR,
        "`ServerInfo` has no row, and other tables have",
        _BY_HAND,
        "up to 0.24 it starts as if the store were empty, and publishing fails because the old channels are in the "
        "way; from 0.25 on it refuses to start",
        "do not start the server; " + _SALVAGE,
    ),
    FindingCode(
        "sql-server-damaged",
        ERROR,
        "the row of ServerInfo is not as a server writes it",
        _EDIT,
        "it refuses to start",
        _SALVAGE,
    ),
    FindingCode(
        "sql-client-damaged",
        WARNING,
        "a row of Clients has a record that does not decode",
        _EDIT,
        "it uses what was decoded so far: a client without an id or inbox, whose subscriptions it drops",
        _SALVAGE + ", with id and inbox from the columns",
    ),
    FindingCode(
        "sql-message-damaged",
        ERROR,
        "the data of message rows does not decode",
        "a message above the 65,535 bytes of a BLOB that the database cut (sql_mode without strict); " + _EDIT,
        "it delivers the fields before the damage; if there is none, it ends with a panic as soon as the message is to "
        "be delivered, after every start again",
        _SALVAGE + "; the payloads of these rows are lost",
    ),
    FindingCode(
        "sql-message-null",
        ERROR,
        "message rows with NULL in timestamp, size or data",
        _EDIT,
        "a message without data ends it with a panic when it is delivered; one without timestamp stops the delivery "
        "of its channel",
        _SALVAGE,
    ),
    FindingCode(
        "sql-sequence-differs",
        ERROR,
        "the data of message rows has another sequence than the row",
        _BY_HAND,
        "it delivers the message with the sequence of the data, and finds none to acknowledge",
        _SALVAGE + " without these rows",
    ),
    FindingCode(
        "sql-subject-differs",
        ERROR,
        "the data of message rows names another channel",
        _BY_HAND,
        "it delivers the message with the subject of the data; acknowledgements go to that channel",
        _SALVAGE + " without these rows",
    ),
    FindingCode(
        "sql-timestamp-differs",
        WARNING,
        "message rows have another timestamp than their data",
        _EDIT,
        "clients see the one of the data; limits by age and subscriptions that begin at a time use the column",
        _SALVAGE + " and these messages, with the timestamp of their data",
    ),
    FindingCode(
        "sql-size-differs",
        WARNING,
        "message rows have another size than the length of their data",
        "the database cut a message above 65,535 bytes; " + _EDIT,
        "it counts bytes by the column; a negative sum stops its start, and a size of 0 makes it search for the "
        "message for ever when a limit removes it",
        "correct the column: `UPDATE Messages SET size = LENGTH(data)` if the data decodes; or "
        + _SALVAGE
        + " and these",
    ),
    FindingCode(
        "sql-row-twice",
        WARNING,
        "several rows with the same key",
        "a restore without keys, or twice",
        "it counts them all and reads one of them; of two channels with one name it uses the last row",
        _SALVAGE + ", with the first of equal rows",
    ),
    FindingCode(
        "sql-orphan-rows",
        WARNING,
        "rows of a channel or subscription that has no row of its own",
        _BY_HAND,
        "it never reads or removes them",
        _SALVAGE + ": messages whose channel has no row come under the name in their subject",
    ),
    FindingCode(
        "sql-channel-deleted",
        INFO,
        "a channel that is marked deleted, and whose rows were not all removed",
        "the server ended while it removed an inactive channel",
        "it never continues the removal; the rows stay",
        "no action is needed",
    ),
    FindingCode(
        "sql-position-ahead",
        ERROR,
        "a subscription or `maxseq` is beyond the last message row of its channel",
        "the last rows are gone: " + _BY_HAND,
        "the channel is empty for readers, although its rows are there; new messages come after that sequence",
        _SALVAGE + "; first look for the missing messages in backups",
    ),
    FindingCode(
        "sql-subscription-damaged",
        ERROR,
        "a row of Subscriptions has a record that does not decode, or none",
        _EDIT,
        "it refuses to start if the record does not decode, and ignores the row if there is none",
        _SALVAGE + ", without the subscription",
    ),
    FindingCode(
        "sql-pending-damaged",
        ERROR,
        "a list of SubsPending is no JSON list of sequences",
        _EDIT,
        "it refuses to start",
        _SALVAGE + ", without the list: its messages are delivered again or not at all",
    ),
    FindingCode(
        "sql-pending-order",
        INFO,
        "the order of rows in SubsPending gives acknowledgements before the list that they are for",
        "an update, restore or VACUUM of the table in PostgreSQL",
        "it takes these messages for pending, and delivers them again",
        "no action is needed; " + _SALVAGE + ", with the order of `row`",
    ),
    FindingCode(
        "sql-pending-mixed",
        WARNING,
        "a subscription with pending rows of a server with caching and of one without",
        "-sql_no_caching was changed between two runs",
        "acknowledgements of rows of the other kind are lost at every start: these messages come again for ever",
        _SALVAGE + "; or set -sql_no_caching as before",
    ),
    FindingCode(
        "sql-clustered",
        INFO,
        "the database of a node of a cluster",
        "the server runs with -clustered",
        "clients and subscriptions are in the node's Raft log, and their tables are empty; a server that is not "
        "clustered opens it, the other way round it refuses",
        "name the Raft directory of the node for its clients and subscriptions",
    ),
    FindingCode(
        "sql-locked",
        INFO,
        "`StoreLock` names a server of a fault tolerance group",
        "the active server runs, or was killed",
        "a standby takes the lock when it does not change for some seconds",
        "stop all servers of the group before anything is changed",
    ),
)
