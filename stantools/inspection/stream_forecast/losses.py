"""The effect of a start on the messages of a JetStream directory: destroyed, not served, served wrongly, given again.

Facts: jetstream-store.md sections 4, 5, 16, 18 and 22.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stantools.inspection.stream_forecast.recovery import RecoveredStream
from stantools.inspection.stream_forecast.started_consumers import ConsumerOutcome
from stantools.store.ranges import Ranges
from stantools.streamfiles.layout import MESSAGES
from stantools.streamfiles.survey import StreamSurvey


@dataclass
class StreamLoss:
    """A start's effect on the messages of one stream."""

    intact: Ranges = field(default_factory=Ranges)  #: whole messages before the start
    gone: Ranges = field(default_factory=Ranges)  #: messages that are missing before the start
    destroyed: Ranges = field(default_factory=Ranges)  #: of these, the ones that are no longer on disk
    #: of the whole ones, messages that limits or their own lifetime remove, whether their bytes stay or not
    expired: Ranges = field(default_factory=Ranges)
    #: of the whole ones, messages that a wrong index of lifetimes removes
    removed: Ranges = field(default_factory=Ranges)
    fired: Ranges = field(default_factory=Ranges)  #: of the whole ones, schedules that end with their message
    unserved: Ranges = field(default_factory=Ranges)  #: of the whole ones, messages that a lookup does not find
    wrong: Ranges = field(default_factory=Ranges)  #: deleted or changed messages that are served
    reused: Ranges = field(default_factory=Ranges)  #: sequences that are given a second time
    missing: dict[str, Ranges] = field(default_factory=dict)  #: new messages that a consumer does not get
    repeated: dict[str, Ranges] = field(default_factory=dict)  #: sequences that a consumer gets again

    @property
    def harmless(self) -> bool:
        return not (self.destroyed or self.unserved or self.wrong or self.reused or self.missing or self.repeated)


def stream_loss(
    survey: StreamSurvey,
    store: RecoveredStream | None,
    readable: Ranges,
    consumers: Mapping[str, ConsumerOutcome],
    *,
    deleted: bool,
    loaded: bool,
) -> StreamLoss:
    """Compares a stream before and after a start; `store` is None if it was not opened."""
    loss = StreamLoss(survey.intact, survey.damaged | survey.missing)
    if deleted:
        loss.destroyed = survey.intact
    elif store is not None:
        loss.destroyed = survey.intact - _remaining(survey, store)
    if store is not None:
        loss.expired, loss.removed, loss.fired = (
            survey.intact & Ranges.union(each) for each in (store.beyond_limits, store.removed, store.fired)
        )
    loss.unserved = survey.intact - readable
    if not loaded or store is None:
        return loss
    loss.wrong = readable - survey.intact - store.added
    last = store.state.last
    used = max([survey.last, *(each.before.delivered[1] for each in consumers.values() if each.before)])
    if used > last:
        loss.reused = Ranges.of([(last + 1, used)])
    for name, each in consumers.items():
        if each.delivered[1] > last:
            loss.missing[name] = Ranges.of([(last + 1, each.delivered[1])])
        if again := _again(each):
            loss.repeated[name] = again & readable
    loss.repeated = {name: each for name, each in loss.repeated.items() if each}
    return loss


def _remaining(survey: StreamSurvey, store: RecoveredStream) -> Ranges:
    """Returns the messages that files still hold after the start."""
    found: list[Ranges] = []
    for block in (*survey.blocks, *survey.others):
        if block.file.place != MESSAGES:
            if store.changes.exists(block.file.path):
                found.append(block.sequences)
        elif not store.changes.exists(block.file.path):
            continue
        elif block.file.name.endswith(".blk"):
            found.append(store.kept.get(block.file.number, block.sequences))
        else:
            found.append(block.sequences)
    return Ranges.union(found)


def _again(consumer: ConsumerOutcome) -> Ranges:
    """Returns the sequences that a consumer had acknowledged, and gets again."""
    if consumer.lost_state:
        return Ranges.of([(consumer.ack_floor[1] + 1, 2**64 - 1)])
    before = consumer.before
    if before is None or before.delivered[1] <= consumer.delivered[1]:
        return Ranges()
    return Ranges.of([(consumer.delivered[1] + 1, before.delivered[1])])


def loss_sentences(name: str, loss: StreamLoss) -> Iterator[str]:
    """Yields what a start does to a stream besides destroying messages, each as a clause about the server."""
    from stantools.notation import describe_ranges

    if loss.removed:
        yield f"removes messages of {name} that thw.db wrongly counts as over: {describe_ranges(loss.removed, 4)}"
    if expired := loss.expired - loss.destroyed:
        yield f"removes messages of {name} whose lifetime is over, or beyond a limit: {describe_ranges(expired, 4)}"
    if loss.fired:
        yield f"stores the messages of due schedules of {name}, which end: {describe_ranges(loss.fired, 4)}"
    hidden = loss.unserved - Ranges.union((loss.destroyed, loss.expired, loss.removed, loss.fired))
    if hidden:
        yield f"does not serve intact messages of {name}: {describe_ranges(hidden, 4)}"
    if loss.wrong:
        yield f"serves messages of {name} that were deleted or have changed: {describe_ranges(loss.wrong, 4)}"
    if loss.reused:
        yield f"gives sequences of {name} a second time: {describe_ranges(loss.reused, 4)}"
    for consumer, ranges in loss.missing.items():
        yield f"never sends new messages to consumer {consumer} of {name}: {describe_ranges(ranges, 4)}"
    for consumer, ranges in loss.repeated.items():
        yield f"sends messages to consumer {consumer} of {name} again: {describe_ranges(ranges, 4)}"
