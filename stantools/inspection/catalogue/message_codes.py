"""Codes of findings in messages: slices, indexes, sequences and subjects."""

from __future__ import annotations

from stantools.inspection.catalogue.finding_code import (
    BITROT,
    CRASH,
    CUT_OR_SALVAGE,
    ERROR,
    FORECAST_OR_SALVAGE,
    INFO,
    SALVAGE,
    WARNING,
    FindingCode,
)

_FORECAST = "run `stantools forecast STORE` before starting the server: a start can destroy data"

SLICES = (
    FindingCode(
        "slice-name",
        ERROR,
        "a msgs.*.dat file whose number cannot be read",
        "a slice was renamed or copied inside the channel directory",
        "it refuses to start",
        "if its messages are in no other file (`slice-stray`), salvage keeps them; otherwise move the file elsewhere",
    ),
    FindingCode(
        "slice-stray",
        WARNING,
        "a file with messages of its own that the server does not treat as a slice",
        "a slice was renamed or copied",
        "it ignores the file, or refuses to start because of its name; it does not see the messages",
        SALVAGE + ", also of such a file",
    ),
    FindingCode(
        "slice-missing",
        WARNING,
        "a slice number is missing, and with it the sequences between its neighbours",
        "a file was removed or not copied",
        "it starts; the messages are gone, and consumers skip them",
        "look for the file in backups and copies: without it its messages cannot be restored; then " + SALVAGE,
    ),
    FindingCode(
        "slice-torn",
        ERROR,
        "a data file ends inside a record",
        CRASH,
        "it refuses to start if it has to read the data file, and deletes the index; with its truncate option it cuts "
        "the file where that record begins",
        CUT_OR_SALVAGE,
    ),
    FindingCode(
        "slice-zeros",
        WARNING,
        "zero bytes where records should be in a data file",
        CRASH,
        "if it has to read the data file: eight or more, it cuts the file there silently, whatever follows; "
        "fewer, it refuses to start. With a good index it does not notice them, and appends after the zeros",
        FORECAST_OR_SALVAGE,
    ),
    FindingCode(
        "slice-dangling-header",
        WARNING,
        "a data file ends with a record header and nothing after it",
        CRASH,
        "it takes that for the end; new messages are appended after it and are lost when the index is rebuilt",
        SALVAGE + " and leaves the header out",
    ),
    FindingCode(
        "slice-bad-payload",
        ERROR,
        "a message does not match its CRC",
        BITROT,
        "if the index is good and the message is not the last of its slice, it starts, and delivery on the channel "
        "stops at this message for every subscriber; otherwise it refuses to start and deletes the index",
        SALVAGE + " (--fill-gaps puts an empty message in its place, so that consumers continue)",
    ),
    FindingCode(
        "slice-bad-length",
        ERROR,
        "the length of a record is wrong; its payload is whole",
        BITROT + "; no CRC covers the length",
        "if the index is good and the message is not the last of its slice, it may not notice; otherwise it refuses to "
        "start, or with its truncate option cuts everything from there on",
        SALVAGE + ", this one as well",
    ),
    FindingCode(
        "slice-bad-crc-field",
        ERROR,
        "the CRC of a record is wrong; its payload is whole",
        BITROT,
        "as for a message that does not match its CRC",
        SALVAGE + ", this one as well",
    ),
    FindingCode(
        "slice-undecodable",
        ERROR,
        "the CRC of a record is right, but it is not a message",
        "another program wrote it",
        "it refuses to start if it has to read the data file; otherwise delivery stops there",
        SALVAGE,
    ),
    FindingCode(
        "slice-garbage",
        ERROR,
        "bytes in which no record can be recognised",
        CRASH + "; " + BITROT,
        "it refuses to start if it has to read the data file. If the index is good it does not notice bytes at the "
        "end, and stops delivery at bytes in the middle",
        SALVAGE,
    ),
)

INDEXES = (
    FindingCode(
        "index-missing",
        WARNING,
        "a slice has no index",
        CRASH + "; or a failed start, which deletes the index",
        "it reads the whole data file and writes a new index; any damage in the data then stops the start",
        _FORECAST,
    ),
    FindingCode(
        "index-empty",
        WARNING,
        "an index holds only its file version although the slice has messages",
        "a crash before the first index record was written, or while the index was rebuilt",
        "it reads the whole data file; because of a defect, it fails at a torn end or zeros that it would "
        "cut otherwise",
        _FORECAST,
    ),
    FindingCode(
        "index-damaged",
        WARNING,
        "an index record is torn, zero, or does not match its CRC",
        CRASH + "; " + BITROT,
        "torn or wrong CRC: it rebuilds the index from the data file. Zeros: it cuts the index there, and no "
        "longer sees the messages after that",
        _FORECAST,
    ),
    FindingCode(
        "index-mismatch",
        ERROR,
        "an index record disagrees with the data record that it points to",
        BITROT + "; an index that belongs to another data file",
        "it relies on the index: a wrong message is delivered, or delivery stops with an error",
        SALVAGE + " and writes new indexes",
    ),
    FindingCode(
        "index-disorder",
        ERROR,
        "correct index records are in the wrong order",
        "a manual repair, or a copy assembled from parts",
        "it looks for a message at the place that its sequence implies, and before it: messages further on "
        "are not found, and read-ahead may return another message",
        SALVAGE + " and writes new indexes",
    ),
    FindingCode(
        "index-orphans",
        WARNING,
        "good messages that the index does not name",
        "a crash between writing the data and writing the index",
        "it does not see them, appends after them and assigns their sequences to new messages",
        SALVAGE,
    ),
    FindingCode(
        "index-dangling",
        ERROR,
        "index records that point to no good message",
        "the data file lost its end",
        "if the last index record is one of them it rebuilds the index from the data file; otherwise it starts, and "
        "delivery stops at these messages",
        SALVAGE,
    ),
    FindingCode(
        "index-without-data",
        WARNING,
        "an index without its data file",
        "a crash while a slice was removed, or a data file that was lost",
        "it ignores the index until the slice number is used again; then new records are appended to the stale ones "
        "and lookups go wrong",
        "look for the data file; if it was removed on purpose, move the index elsewhere",
    ),
)

SEQUENCES = (
    FindingCode(
        "sequence-missing",
        INFO,
        "sequences between the first and the last without a message",
        "a lost slice, a truncation, a repair, or a server before 0.9.2",
        "consumers skip them",
        "no action is needed; `stantools salvage --fill-gaps` puts empty messages in their place",
    ),
    FindingCode(
        "sequence-damaged",
        ERROR,
        "messages of the channel with damaged records, if the findings of its slices do not name each",
        "see the findings of the slice",
        "see the findings of the slice",
        SALVAGE,
    ),
    FindingCode(
        "sequence-duplicate",
        WARNING,
        "the same messages are stored twice",
        "a slice was copied under another number",
        "it counts them twice; which copy it reads is not defined",
        "`stantools salvage STORE --out NEW` keeps one of each",
    ),
    FindingCode(
        "sequence-disorder",
        WARNING,
        "messages are stored after messages with higher sequences",
        "slices were renamed or swapped",
        "lookups can fail",
        "`stantools salvage STORE --out NEW` writes them in order",
    ),
    FindingCode(
        "sequence-generations",
        ERROR,
        "sequences begin again: the channel holds messages of several generations",
        "server.dat was lost, and a server up to 0.24 started over in the old files",
        "lookups fail or return messages of the wrong generation",
        "`stantools salvage STORE --out NEW` keeps all generations, older ones as channels of their own; --generation "
        "chooses one",
    ),
    FindingCode(
        "sequence-superseded",
        WARNING,
        "older messages whose sequences were assigned to newer ones",
        "a crash: the server forgot messages that its index did not name, and assigned their sequences again",
        "it reads the newer ones, or the older ones if the index is lost",
        "`stantools salvage STORE --out NEW` keeps the newer ones in the channel and the older ones in a channel of "
        "their own",
    ),
    FindingCode(
        "sequence-zero",
        WARNING,
        "a message with sequence 0",
        "another program wrote it",
        "the channel cannot be delivered",
        SALVAGE + " but this one",
    ),
    FindingCode(
        "foreign-subject",
        WARNING,
        "messages that belong to another channel",
        "slices were moved between channels",
        "it delivers them as if they belonged here",
        "`stantools salvage STORE --out NEW` moves them to their channel",
    ),
    FindingCode(
        "subject-invalid",
        INFO,
        "messages whose subject is not a legal channel name",
        "another program wrote them",
        "it delivers them on the channel of the directory",
        "no action is needed",
    ),
)
