"""The merged log of simulated clusters: leaders, lost messages, branches that are given up, pages that are lost."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.clusterlog import MergedLog
from stantools.inspection.node import examine
from stantools.store.nodes import NodeFiles
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from tests.boltfiles import entry, key, raft_log

NODES = 3
Log = list[tuple[int, bytes]]


def operation(number: int) -> bytes:
    """A command with a content of its own: messages, mostly."""
    if number % 7:
        messages = pb.RaftOperation(channel_id=3)
        for sequence in (2 * number, 2 * number + 1):
            messages.publish_batch.messages.add(sequence=sequence, subject=b"orders", data=b"x", timestamp=1 << 60)
        return messages.SerializeToString()
    client = pb.AddClient(request=pb.ConnectRequest(client_id=b"client-%d" % number))
    return pb.RaftOperation(op_type=pb.RaftOperation.CONNECT, client_connect=client).SerializeToString()


def simulated(chance: random.Random) -> tuple[list[Log], int, list[int]]:
    """Runs a cluster: the log of each node (term and data of each entry), what is committed, and newest terms."""
    logs: list[Log] = [[] for _ in range(NODES)]
    terms = [0] * NODES
    committed = term = number = 0
    for _ in range(chance.randint(1, 12)):
        leader = chance.randrange(NODES)
        ends = [(log[-1][0] if log else 0, len(log)) for log in logs]
        voters = [node for node in range(NODES) if ends[node] <= ends[leader]]
        if len(voters) <= NODES // 2:
            continue
        term += 1
        for node in voters:
            terms[node] = term
        begin = len(logs[leader])
        for _ in range(chance.randint(1, 6)):
            number += 1
            logs[leader].append((term, operation(number)))
        reached = [leader]
        for node in range(NODES):
            if node != leader and terms[node] <= term and chance.random() < 0.6:
                upto = chance.randint(begin, len(logs[leader]))
                # What differs is cut off; what is equal stays, also behind that.
                same = logs[node][:upto] == logs[leader][:upto]
                logs[node] = logs[node] if same and len(logs[node]) >= upto else logs[leader][:upto]
                terms[node] = term
                reached.append(node)
        ends_ = sorted((common(logs[leader], logs[node]) for node in range(NODES)), reverse=True)
        majority = ends_[NODES // 2]
        if majority > begin:  # only entries of the leader's own term count
            committed = max(committed, majority)
    return logs, committed, terms


def common(one: Log, other: Log) -> int:
    """How many entries both have, from the beginning on."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def merged(
    directory: Path, logs: list[Log], terms: list[int], lost: dict[int, set[int]], hurt: random.Random | None = None
) -> list[tuple[int, int, bytes]]:
    """Writes the logs, without what was lost, and merges them: index, term and data of each entry.

    It makes no difference whether entries are looked at together or one by one, also where a log was hurt.
    """
    reports, names = [], []
    for node, log in enumerate(logs):
        rows = [(key(at), entry(at, data, term=term)) for at, (term, data) in enumerate(log, 1)]
        kept = [row for at, row in enumerate(rows, 1) if at not in lost.get(node, ())]
        if not kept:
            continue
        place = directory / f"node{node}" / "cluster"
        place.mkdir(parents=True)
        # Pages are filled in another way on each node.
        content = bytearray(raft_log(kept, term=terms[node], per_leaf=(3, 8, 20)[node]))
        for _ in range(hurt.randint(0, 3) if hurt else 0):
            content[hurt.randrange(len(content))] ^= 1 << hurt.randrange(8)  # type: ignore[union-attr]
        (place / "raft.log").write_bytes(content)
        reports.append(examine(NodeFiles(place.parent, place, None), ReadOptions()))
        names.append(f"node{node}")
    together, single = told(MergedLog(reports, names)), MergedLog(reports, names)
    single.common_part = lambda *_: None  # type: ignore[method-assign]
    assert together == told(single)
    history = MergedLog(reports, names)
    return [(each.index, each.term, bytes(each.data)) for each, _, _, _ in history.entries()]


def told(history: MergedLog) -> tuple[object, ...]:
    """What the logs come to, whether entries are looked at together or one by one."""
    try:
        log = history.fold()
    except RefusedError as error:
        return (error.message,)
    return (
        (log.winner, log.term, log.index, log.proven, log.tail, log.missing, log.conflicts, log.branches),
        {name: (each.first, each.last) for name, each in log.state.channels.items()},
        list(log.state.clients),
        list(history.publishes({b"orders": Ranges.of([(5, 12)])})),
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_merged_log_is_that_of_the_next_leader(seed: int) -> None:
    chance = random.Random(seed)
    logs, committed, terms = simulated(chance)
    best = max(logs, key=lambda log: (log[-1][0] if log else 0, len(log)))
    with tempfile.TemporaryDirectory() as directory:
        found = merged(Path(directory), logs, terms, {})
    assert found == [(at, term, data) for at, (term, data) in enumerate(best, 1)]
    assert len(found) >= committed


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_what_one_log_lost_comes_from_another(seed: int) -> None:
    chance = random.Random(seed)
    logs, committed, terms = simulated(chance)
    best = max(logs, key=lambda log: (log[-1][0] if log else 0, len(log)))
    if len(best) < 3:
        return
    # In the middle of one log: its end says who would have been elected.
    node, begin = chance.randrange(NODES), chance.randrange(1, len(best) - 1)
    gone = set(range(begin, min(begin + chance.randint(1, 5), len(best) - 1)))
    with tempfile.TemporaryDirectory() as directory:
        found = {index: (term, data) for index, term, data in merged(Path(directory), logs, terms, {node: gone})}
    for at in range(1, committed + 1):
        holders = [other for other in range(NODES) if logs[other][:at][at - 1 :] == [best[at - 1]]]
        if any(other != node or at not in gone for other in holders):
            assert found.get(at) == best[at - 1], at


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_damage_of_any_log(seed: int) -> None:
    chance = random.Random(seed)
    logs, _, terms = simulated(chance)
    with tempfile.TemporaryDirectory() as directory:
        merged(Path(directory), logs, terms, {}, chance)
