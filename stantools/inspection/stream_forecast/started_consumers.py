"""The start of a stream's consumers. Facts: jetstream-store.md sections 10 and 18."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_forecast.reading import MAX_SPAN, BlockReader, ServerHangs
from stantools.inspection.stream_forecast.recovery import RecoveredStream
from stantools.store.directory import matches_any
from stantools.store.ranges import Ranges
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import ConsumerState, encode_consumer
from stantools.streamfiles.varints import VarintReader

_BEGIN: Final = 0x16
_NO_TIME: Final = "0001-01-01T00:00:00Z"
_NOWHERE: Final = 2**64 - 1


@dataclass(slots=True)
class ConsumerOutcome:
    """A consumer after the start of its stream."""

    name: str
    delivered: tuple[int, int] = (0, 0)  #: sequence of the delivery, and in the stream
    ack_floor: tuple[int, int] = (0, 0)
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    before: ConsumerState | None = None  #: as stored
    lost_state: bool = False  #: it has none, or an empty one, and starts anew

    def as_json(self) -> dict[str, Any]:
        names = ("consumer", "stream")
        return {
            "delivered": dict(zip(names, self.delivered, strict=True)),
            "ack_floor": dict(zip(names, self.ack_floor, strict=True)),
            "num_pending": self.num_pending,
            "num_ack_pending": self.num_ack_pending,
            "num_redelivered": self.num_redelivered,
        }


def start_consumers(store: RecoveredStream, reader: BlockReader) -> tuple[dict[str, ConsumerOutcome], str]:
    """Returns the consumers of a stream after its start, and the error that the stream then answers with."""
    start = _ConsumerRecovery(store, reader)
    found: dict[str, ConsumerOutcome] = {}
    for name in store.consumer_names():
        if name.startswith("."):
            store.changes.remove_directory(store.stream.path / "obs" / name)
            continue
        outcome = start.load(name)
        if start.error:
            return {}, start.error
        if outcome:
            found[name] = outcome
    return found, ""


def recreate_consumers(store: RecoveredStream, target: Path) -> dict[str, ConsumerOutcome]:
    """Creates the consumers of a stream anew for one of another name, which is empty."""
    found: dict[str, ConsumerOutcome] = {}
    for name in store.consumer_names():
        place = store.stream.path / "obs" / name
        config = json.loads(store.stream.read(f"obs/{name}/meta.inf") or b"{}")
        begin = max(int(config.get("opt_start_seq") or 1) - 1, 0)
        found[name] = ConsumerOutcome(name, (0, begin), (0, begin), lost_state=True)
        for file, size in (("meta.inf", (place / "meta.inf").stat().st_size), ("meta.sum", 16), ("o.dat", 8)):
            store.changes.write(target / "obs" / name / file, size)
    return found


class _ConsumerRecovery:
    def __init__(self, store: RecoveredStream, reader: BlockReader) -> None:
        self.store = store
        self.reader = reader
        self.error = ""
        self.first, self.last, self.messages = store.opened.first, store.opened.last, store.opened.messages

    def load(self, name: str) -> ConsumerOutcome | None:
        """Loads a consumer; None if the server does not."""
        store, rules = self.store, self.store.rules
        stream, folder = store.stream, f"obs/{name}"
        place = stream.path / folder
        config = self._config(name)
        if config is None:
            return None
        shown = f"{stream.account} > {stream.name} > {name}"
        asset = stream.consumer_key(name)
        data = stream.read(f"{folder}/o.dat")
        try:
            state = stored_state(asset.unseal(data) if asset and data else data)
        except (ArchiveError, ValueError) as problem:
            text = str(problem) if isinstance(problem, ValueError) else "corrupt state file"
            if not rules.believes_consumers:
                store.warn(f"    Error adding consumer '{shown}': error creating store for consumer: {text} (10104)")
                if rules.deletes_consumers:
                    store.changes.remove_directory(place)
                return None
            return ConsumerOutcome(name, (_NOWHERE, _NOWHERE), num_pending=store.state.messages)
        self._rewrite_config(name, config)
        outcome = ConsumerOutcome(name, before=state)
        if state is None:
            outcome.lost_state = True
            begin = self._begin(config)
            outcome.delivered = (0, begin)
            outcome.ack_floor = (0, begin)
            if data is None:
                store.changes.write(place / "o.dat", 8)
            pending: dict[int, tuple[int, int]] = {}
            redelivered: dict[int, int] = {}
        else:
            outcome.delivered, outcome.ack_floor = state.delivered, state.ack_floor
            pending, redelivered = dict(state.pending), dict(state.redelivered)
            self._reset(outcome, pending, redelivered, shown)
            self._purge(outcome, pending, redelivered)
            changed = ConsumerState(outcome.ack_floor, outcome.delivered, pending, redelivered)
            if changed != state and not changed.problem():
                size = len(encode_consumer(changed)) + (len(data) - len(asset.unseal(data)) if asset and data else 0)
                store.changes.write(place / "o.dat", size)
        outcome.num_ack_pending = len(pending)
        outcome.num_redelivered = len(redelivered)
        outcome.num_pending = self._num_pending(config, outcome.delivered[1])
        moves = rules.limits_move_floors and store.limited and not pending and outcome.delivered[0] > 0
        if moves and outcome.delivered[1] < store.state.first - 1:
            outcome.ack_floor = (outcome.ack_floor[0], store.state.first - 1)
        return outcome

    def _touch(self, config: Mapping[str, Any], after: int) -> bool:
        """Reads the blocks that the count of a consumer's messages needs; False if a lookup there fails at first."""
        store, state = self.store, self.store.state
        everything = not _filters(config)
        if everything and state.last - state.first + 1 == state.messages:
            return True
        blocks = store.blocks
        at = next((row for row, each in enumerate(blocks) if each.last >= after + 1), None)
        if at is None:
            return True
        if everything:
            return after + 1 <= blocks[at].first or self.reader.touch(blocks[at]) or at < len(blocks) // 2
        chosen = list(blocks[at:] if at >= len(blocks) // 2 else blocks[: at + 1])
        readable = [self.reader.touch(block) for block in chosen]
        return all(readable) or at < len(blocks) // 2

    def _config(self, name: str) -> Mapping[str, Any] | None:
        store = self.store
        place = store.stream.path / "obs" / name
        try:
            data, checksum = (store.stream.read(f"obs/{name}/{file}") for file in ("meta.inf", "meta.sum"))
        except NotPermittedError:
            raise
        except StoreUnreadableError as problem:
            store.warn(f'    Error reading consumer metafile "{place / "meta.inf"}": {problem.message}')
            return None
        if data is None:
            store.warn(f'    Missing consumer metafile "{place / "meta.inf"}"')
            return None
        if checksum is None:
            store.warn(f'    Missing consumer checksum for "{place / "meta.sum"}"')
            return None
        asset = store.stream.consumer_key(name)
        try:
            config = json.loads(asset.unseal(data) if asset else data)
            if not isinstance(config, dict):
                raise ValueError("cannot unmarshal")
        except (ValueError, ArchiveError) as problem:
            store.warn(f'    Error unmarshalling consumer metafile "{place / "meta.inf"}": {problem}')
            return None
        if unknown := store.rules.unknown_member(config, consumer=True):
            store.warn(
                f'    Error unmarshalling consumer metafile "{place / "meta.inf"}": json: unknown field "{unknown}"'
            )
            store.warn(f"  Stopping unsupported stream '{store.stream.account} > {store.stream.name}'")
            self.error = f'stream is offline: stopped - unsupported consumer "{name}"'
            return None
        return config

    def _begin(self, config: Mapping[str, Any]) -> int:
        """Returns the sequence before the first one that a new consumer gets."""
        policy, state = config.get("deliver_policy", "all"), self.store.state
        if policy == "new":
            return state.last
        if policy == "last":
            return max(state.last - 1, 0)
        if policy == "by_start_sequence":
            return max(int(config.get("opt_start_seq") or 1) - 1, 0)
        return 0

    def _rewrite_config(self, name: str, config: Mapping[str, Any]) -> None:
        """The configuration of a consumer without a durable name loses its name and time at the first start."""
        if config.get("durable_name"):
            return
        own, created = str(config.get("Name", "")), str(config.get("Created", _NO_TIME))
        surplus = len(own) + len(created) - len(_NO_TIME)
        if surplus:
            place = self.store.stream.path / "obs" / name
            self.store.changes.write(place / "meta.inf", (place / "meta.inf").stat().st_size - surplus)
            self.store.changes.write(place / "meta.sum", 16)

    def _reset(
        self, outcome: ConsumerOutcome, pending: dict[int, tuple[int, int]], redelivered: dict[int, int], shown: str
    ) -> None:
        """Returns a consumer beyond the end of the stream to the end, or to its floor."""
        store, last = self.store, self.last
        if not store.rules.resets_consumers or outcome.delivered[1] <= last:
            return
        text = f"delivered sequence {outcome.delivered[1]} past last stream sequence of {last}"
        store.warn(f"JetStream consumer '{shown}' {text}")
        floor = outcome.ack_floor
        if floor[1] > last:
            floor = (outcome.delivered[0], last)
        kept = {sequence: each for sequence, each in pending.items() if sequence <= last}
        delivered = (max([floor[0], *(each for each, _ in kept.values())]), max([floor[1], *kept]))
        if delivered == (0, 0):
            return
        outcome.delivered, outcome.ack_floor = delivered, floor
        for sequence in [*(each for each in pending if each > last), *(each for each in redelivered if each > last)]:
            pending.pop(sequence, None)
            redelivered.pop(sequence, None)

    def _purge(
        self, outcome: ConsumerOutcome, pending: dict[int, tuple[int, int]], redelivered: dict[int, int]
    ) -> None:
        """Drops the pending messages before the first one of the stream, and moves the floor after them."""
        gone = [each for each in pending if each < self.first]
        if not gone:
            return
        floor = outcome.ack_floor
        for sequence in gone:
            floor = (max(floor[0], pending.pop(sequence)[0]), max(floor[1], sequence))
            redelivered.pop(sequence, None)
        outcome.ack_floor = floor if pending else outcome.delivered

    def _num_pending(self, config: Mapping[str, Any], after: int) -> int:
        """Counts the messages after a sequence that match the filter.

        From a block in the first half of the stream on, the server counts by its table of subjects, and does not see
        damage; from a later one on it looks the messages up.
        """
        store, filters = self.store, _filters(config)
        last_only = config.get("deliver_policy") == "last_per_subject"
        if not after and not filters and not last_only:
            self._touch(config, after)
            return self.messages if store.trusted else store.state.messages
        early = any(each.last > after for each in store.blocks[: len(store.blocks) // 2])
        known = [each.live for each in store.blocks]
        found = self._touch(config, after)
        if not early:
            if not found:
                return 0
            known = [self.reader.countable(each) for each in store.blocks]
        wanted = Ranges.of([(after + 1, 2**64 - 1)])
        if not filters and not last_only:
            return sum((each & wanted).count() for each in known)
        count, seen = 0, set[int]()
        for block, live in zip(reversed(store.blocks), reversed(known), strict=True):
            if not live & wanted:
                continue
            records = store.records(block)
            rows = (records.flags == 0) & (live & wanted).select(records.sequence)
            fitting = np.array([each for each, text in records.subjects.items() if _fits(filters, text)], np.uint64)
            chosen = records.subject[rows][np.isin(records.subject[rows], fitting)]
            if last_only:
                new = set(chosen.tolist()) - seen
                count += len(new)
                seen |= new
            else:
                count += len(chosen)
        return count


def _fits(filters: Sequence[str], subject: bytes) -> bool:
    return matches_any(subject.decode("utf-8", "surrogateescape"), filters)


def _filters(config: Mapping[str, Any]) -> list[str]:
    """Returns the filters of a consumer; none if every message matches."""
    filters = [*(config.get("filter_subjects") or ()), *filter(None, [config.get("filter_subject")])]
    return [] if ">" in filters else filters


def stored_state(data: bytes | None) -> ConsumerState | None:
    """Reads o.dat as a server does; None without a state, ArchiveError if the server takes it for damage."""
    if not data:
        return None
    if len(data) < 2 or data[0] != _BEGIN:
        raise ArchiveError("corrupt state file")
    if data[1] not in (1, 2):
        raise ValueError(f"unsupported version: {data[1]}")
    numbers = VarintReader(data, 2)
    floor = (numbers.take(), numbers.take())
    delivered = (numbers.take(), numbers.take())
    if data[1] == 1 and floor[1] > 1:
        delivered = (delivered[0] + floor[0] - 1, delivered[1] + floor[1] - 1)
    pending: dict[int, tuple[int, int]] = {}
    redelivered: dict[int, int] = {}
    count = _lenient(numbers.take)
    if count > MAX_SPAN:
        raise ServerHangs
    base = _lenient(numbers.signed) if count else 0
    for _ in range(count):
        sequence = floor[1] + numbers.take()
        number = floor[0] + numbers.take() if data[1] == 2 else 0
        time = numbers.signed()
        if not sequence:
            raise ArchiveError("corrupt state file")
        pending[sequence] = (number, (base - time if data[1] == 2 else base + time) * 1_000_000_000)
    count = _lenient(numbers.take)
    for _ in range(count):
        sequence, times = _lenient(numbers.take), _lenient(numbers.take)
        if not sequence and numbers.position >= len(data):
            break
        if sequence and times:
            redelivered[floor[1] + sequence] = times
    return ConsumerState(floor, delivered, pending, redelivered)


def _lenient(take: Callable[[], int]) -> int:
    """Returns the next number; 0 after the end."""
    try:
        return take()
    except ArchiveError:
        return 0
