"""The consumers of streams in a JetStream directory: position, pending messages, lag.

The lag of a consumer is the number of intact messages after its last delivery that its filters select.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.errors import ExitCode
from stantools.escaping import text
from stantools.inspection.report import Report, ReportRemark, ReportTable, columns
from stantools.inspection.stream_overview import consumer_as_json
from stantools.inspection.stream_verify import flaw_finding
from stantools.notation import describe_ranges
from stantools.sources.source import Source
from stantools.store.directory import subject_matches
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredConsumer, StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS: Final = columns(
    *("account", "stream", "consumer", "filter", "delivered", "ack floor", "lag", "pending", "redelivered"),
    numbers=("delivered", "ack floor", "lag", "redelivered"),
    keys=("account", "stream", "consumer"),
    details=("redelivered", "filter", "ack floor", "delivered"),
)
_RECORDS: Final = (
    *("account", "stream", "consumer", "delivered", "ack_floor", "lag", "num_pending", "num_redelivered"),
)
_ABOUT_CONSUMERS: Final = {
    *(FlawKind.CONSUMER_META, FlawKind.CONSUMER_STATE, FlawKind.KEY_MISSING, FlawKind.KEY_WRONG),
}
_HIGHEST: Final = 2**64 - 1


@dataclass
class ConsumerLag:
    stream: StoredStream
    consumer: StoredConsumer
    lag: int = 0
    filters: Sequence[str] = ()
    matching: dict[int, bool] = field(default_factory=dict)  #: by hash of the subject

    @property
    def delivered(self) -> int:
        return self.consumer.state.delivered[1] if self.consumer.state else 0

    def as_json(self) -> dict[str, Any]:
        return {**consumer_as_json(self.consumer), "lag": self.lag if self.consumer.state else None}

    def count(self, batch: RecordBatch, hashes: NDArray[np.uint64]) -> None:
        """Adds the messages after the last delivery that the filters select."""
        after = batch.sequence > self.delivered
        unique, places, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        for each, row in zip(unique.tolist(), places.tolist(), strict=True):
            if each not in self.matching:
                subject = text(batch.subject(row))
                self.matching[each] = any(subject_matches(pattern, subject) for pattern in self.filters)
        selected = np.array([self.matching[each] for each in unique.tolist()], np.bool_)
        self.lag += int(np.count_nonzero(after & selected[inverse.reshape(-1)]))


def consumer_lags(stream: StoredStream) -> list[ConsumerLag]:
    """Reads the consumers of a stream; its messages only if a consumer has filters or no index lists them."""
    found = [ConsumerLag(stream, each, filters=_filters(each.config or {})) for each in stream.consumers]
    known = stream.index
    filtered = [each for each in found if each.filters]
    if filtered or known is None or stream.index_doubt:
        survey = StreamSurvey(stream)
        live = survey.intact
        for _, batch in survey.messages() if filtered else ():
            hashes = batch.subject_hashes()
            for each in filtered:
                each.count(batch, hashes)
    else:
        live = known.listed()
    for each in found:
        if not each.filters:
            each.lag = (live & Ranges.of([(each.delivered + 1, _HIGHEST)])).count()
    return found


def _filters(config: Mapping[str, Any]) -> Sequence[str]:
    one, many = config.get("filter_subject"), config.get("filter_subjects")
    filters = [one] if isinstance(one, str) and one else []
    filters += [each for each in many if isinstance(each, str)] if isinstance(many, list) else []
    return [] if ">" in filters else filters


def consumers_report(source: Source, patterns: Sequence[str] = ()) -> Report:
    report = Report()
    chosen = source.chosen_streams(patterns)
    lags = [(stream, consumer_lags(stream)) for stream in chosen]
    everyone = [each for _, found in lags for each in found]
    report.tables.append(ReportTable(_COLUMNS, [_row(each) for each in everyone]))
    if not everyone:
        report.warnings.append(ReportRemark("warning", "no stream has a consumer"))
    for stream in chosen:
        for flaw in stream.flaws:
            if flaw.kind in _ABOUT_CONSUMERS:
                found = flaw_finding(flaw, source, stream)
                report.code = ExitCode.FINDINGS
                report.warnings.append(ReportRemark("warning", f"{found.file}: {found.detail}", remedy=found.remedy))
    report.document = lambda: {
        "schema": 1,
        "kind": "jetstream",
        "path": str(source.path),
        "streams": [
            {"account": stream.account, "name": stream.name, "consumers": [each.as_json() for each in found]}
            for stream, found in lags
        ],
    }
    report.records = (_RECORDS, map(_record, everyone))
    return report


def _row(each: ConsumerLag) -> tuple[Any, ...]:
    state = each.consumer.state
    head = (each.stream.account, each.stream.name, each.consumer.name, ", ".join(each.filters) or None)
    if state is None:
        return (*head, None, None, None, "unknown", None)
    pending = Ranges.of((number, number) for number in state.pending)
    shown = f"{len(state.pending)}: {describe_ranges(pending, 4)}" if pending else "0"
    return (*head, state.delivered[1], state.ack_floor[1], each.lag, shown, len(state.redelivered))


def _record(each: ConsumerLag) -> tuple[Any, ...]:
    state = each.consumer.state
    head = (each.stream.account, each.stream.name, each.consumer.name)
    if state is None:
        return (*head, None, None, None, None, None)
    return (*head, state.delivered[1], state.ack_floor[1], each.lag, len(state.pending), len(state.redelivered))
