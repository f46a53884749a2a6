"""The two folds of a subs.dat: the same rows for any records, and little memory for any number of them."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import SubRecord
from stantools.format.logencode import encode_flow, encode_subscription, encode_subscription_delete
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.subscribers import SubscriberList
from stantools.store import sublog
from stantools.store.sublog import SubsState, SubStatus, classify, read_subs, salvage_subs
from tests.conftest import others_slow
from tests.durables import write_durables
from tests.oracles import folding as oracle

CRC = Crc()


def random_log(seed: int, records: int, ids: int) -> bytes:
    """A log of random records, some of them not as a server writes them."""
    rng = random.Random(seed)
    parts = [FILE_HEADER_BYTES]
    for _ in range(records):
        number = rng.choice((rng.randint(1, ids), rng.randint(1, ids), rng.getrandbits(64), 0))
        chance = rng.random()
        if chance < 0.3:
            state = pb.SubState(
                id=number,
                client_id=rng.choice((b"", b"me", b"you")),
                q_group=rng.choice((b"", b"q:w")),
                inbox=rng.choice((b"in", b"in", b"in" * 90, b"")),
                ack_inbox=b"ack",
                max_in_flight=rng.choice((0, 1, 1024, -1)),
                durable_name=rng.choice((b"", b"dur")),
                last_sent=rng.choice((0, 5, 2**40)),
                is_durable=rng.random() < 0.5,
                is_closed=rng.random() < 0.5,
            )
            encoded = encode_subscription(state, CRC, update=rng.random() < 0.4)
            if rng.random() < 0.1:  # an unknown field
                encoded = encode(state.SerializeToString() + b"\xf8\x01\x01", CRC, SubRecord.NEW)
            parts.append(encoded)
        elif chance < 0.36:
            parts.append(encode_subscription_delete(number, CRC))
        else:
            kind = int(rng.choice((SubRecord.MSG, SubRecord.MSG, SubRecord.ACK)))
            parts.append(encode_flow(kind, number, rng.choice((rng.randint(0, 30), rng.getrandbits(64))), CRC))
    return b"".join(parts)


def told(state: SubsState) -> object:
    """All that a fold says."""
    rows = [(n, s.state.SerializeToString(), sorted(s.pending)) for n, s in state.subscriptions.items()]
    return rows, state.max_id, state.records, state.dead, state.rows, state.record_bytes, state.end, state.damages


@pytest.mark.parametrize("seed", others_slow(range(12), range(0, 12, 2)))
def test_both_folds_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = memoryview(random_log(seed, 3000, 1 + 4**seed % 2000))
    compiled = told(read_subs(log, CRC)), told(salvage_subs(log, CRC))
    monkeypatch.setattr(sublog, "Fold", oracle.Fold)
    assert (told(read_subs(log, CRC)), told(salvage_subs(log, CRC))) == compiled


def test_table_and_its_rows_agree() -> None:
    """Columns say of each subscription what its object says, here and in another process."""
    for seed in range(6):
        table = salvage_subs(memoryview(random_log(seed, 800, 60)), CRC).subscriptions
        assert len(table), seed
        known = {b"me"}
        statuses = [sublog.STATUSES[number] for number in table.statuses(known)]
        assert statuses == [classify(each.state, known) for each in table.values()], seed
        assert table.waiting.tolist() == [len(each.pending) for each in table.values()], seed
        assert dict(pickle.loads(pickle.dumps(table))) == dict(table), seed
        given = [(state.id, pending) for state, pending in table.each(np.arange(len(table)))]
        assert given == [(number, sorted(each.pending)) for number, each in table.items()], seed
        assert 1 << 70 not in table and -1 not in table, seed


def test_chosen_subscribers() -> None:
    parts = [
        encode_subscription(pb.SubState(id=n, client_id=c, inbox=b"i", ack_inbox=b"a", last_sent=n, **more), CRC)
        for n, c, more in (
            (9, b"here", {}),
            (3, b"gone", {"q_group": b"d:g", "is_durable": True}),
            (4, b"here", {"q_group": b"d:g", "is_durable": True}),
        )
    ]
    all_of_them = SubscriberList(read_subs(memoryview(FILE_HEADER_BYTES + b"".join(parts)), CRC), {b"here"}, 1, 10)
    assert [(each.state.id, each.lag) for each in all_of_them] == [(3, 6), (4, 6), (9, 1)]
    assert [each.state.id for each in all_of_them.having(SubStatus.GHOST)] == [3]
    assert [each.state.id for each in all_of_them.with_ids([9, 4, 7]).having(SubStatus.ACTIVE)] == [4, 9]
    assert [each.state.id for each in all_of_them[1:]] == [4, 9]


def peak(*arguments: object) -> int:
    """The most memory that a command takes, in MiB."""
    code = (
        "import sys; from stantools.cli.main import main\n"
        "sys.argv[0] = 'stantools'\n"
        "try: main()\n"
        "finally: sys.stderr.write(open('/proc/self/status').read())"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    found = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert found, done.stderr
    return int(found[1]) // 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not tell")
@pytest.mark.parametrize(
    ("verb", "durables"),
    [
        ("forecast", 30_000),
        pytest.param("subs -o json", 30_000, marks=pytest.mark.slow),
        *(
            pytest.param(verb, 90_000, marks=pytest.mark.slow)
            for verb in ("info", "subs", "subs -o json", "forecast", "salvage --out new")
        ),
    ],
)
def test_memory_does_not_grow_with_objects(
    verb: str, durables: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As objects, 90,000 durables take 90 MiB and more; as columns a fifth of that."""
    monkeypatch.chdir(tmp_path)
    name, *options = verb.split()
    few = peak(name, write_durables(tmp_path / "few", 100), *options)
    options = ["other" if option == "new" else option for option in options]
    many = peak(name, write_durables(tmp_path / "many", durables), *options)
    assert many - few < 40 * durables / 90_000
