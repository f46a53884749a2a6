"""Anything at all on the client port of a live broker: it goes on, others notice nothing, and it does not grow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.brokers import Broker
from tests.interop.corpus.frames import NASTY
from tests.interop.watching import Plain, Watch, without_extras


@pytest.fixture(scope="module", params=["as installed", pytest.param("without extras", marks=pytest.mark.slow)])
def watch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    environment = without_extras(folder) if request.param == "without extras" else {}
    with (
        Broker(folder, "-st", "FILE", "-dir", folder / "store", "--file_sync=false", environment=environment) as broker,
        Watch(broker) as watching,
    ):
        yield watching


@pytest.mark.parametrize("name", NASTY)
def test_the_corpus(watch: Watch, name: str) -> None:
    # Whole, and in pieces.
    with Plain(watch.broker.port) as client:
        client.throw(NASTY[name])
        client.end()
    with Plain(watch.broker.port) as client:
        data = NASTY[name][:5000]
        for at in range(0, len(data), 97):
            client.throw(data[at : at + 97])
        client.end()
    watch.check(name)


_WORDS = st.sampled_from(
    [
        *(b"a", b"a.b", b"a.*", b">", b"*", b".", b"a..b", b"\xff\xfe", b"_INBOX.x.1", b"q", b"1", b"-1", b"0", b"2"),
        *(b"_STAN.pub.test-cluster.foo", b"_STAN.discover.test-cluster", b"_STAN.sub.test-cluster", b"_STAN.>"),
        *(b"_STAN.discover.test-cluster.pings", b"_STAN.close.test-cluster", b"2147483647", b"99999999999999999999"),
    ]
)
_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b""])
_CONNECTS = st.sampled_from(
    [
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n',
        b"CONNECT {}\r\n",
        b'CONNECT {"verbose":false,"echo":false}\r\n',
    ]
)


@st.composite
def _publishes(draw: st.DrawFn) -> bytes:
    payload = draw(st.binary(max_size=60))
    words = b" ".join(draw(st.lists(_WORDS, min_size=1, max_size=2)))
    if draw(st.booleans()):
        return b"PUB %b %d\r\n%b%b" % (words, len(payload), payload, draw(_ENDS))
    size = draw(st.integers(0, len(payload) + 1))
    return b"HPUB %b %d %d\r\n%b%b" % (words, size, len(payload), payload, draw(_ENDS))


@st.composite
def _lines(draw: st.DrawFn) -> bytes:
    operation = draw(st.sampled_from([b"SUB", b"UNSUB", b"PUB", b"HPUB", b"PING", b"PONG", b"INFO", b"MSG", b"sub"]))
    return operation + b" " + b" ".join(draw(st.lists(_WORDS, max_size=4))) + draw(_ENDS)


_OPERATIONS = st.one_of(_publishes(), _lines(), _CONNECTS, st.binary(max_size=80))


@st.composite
def _streams(draw: st.DrawFn) -> list[bytes]:
    """What a connection sends, in pieces: something valid, then anything, with some bytes changed, cut anywhere."""
    data = bytearray(draw(st.one_of(st.just(b""), _CONNECTS)) + b"".join(draw(st.lists(_OPERATIONS, max_size=12))))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [bytes(data[i:j]) for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _feed(watch: Watch, pieces: list[bytes]) -> None:
    with Plain(watch.broker.port) as client:
        for piece in pieces:
            client.throw(piece)
        client.end()
    watch.check(pieces)


_LIVE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=150, deadline=None, suppress_health_check=_LIVE)
@given(_streams())
def test_streams(watch: Watch, pieces: list[bytes]) -> None:
    _feed(watch, pieces)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=_LIVE)
@given(_streams())
def test_many_streams(watch: Watch, pieces: list[bytes]) -> None:
    _feed(watch, pieces)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_corpus_with_changes(watch: Watch, seed: int) -> None:
    chance = random.Random(seed)
    names = list(NASTY)
    for _ in range(500):
        data = bytearray(NASTY[chance.choice(names)][:20_000] + NASTY[chance.choice(names)][:20_000])
        for _ in range(chance.randint(0, 8)):
            if data:
                at = chance.randrange(len(data))
                data[at : at + chance.choice([0, 1, 1, 4])] = chance.randbytes(chance.choice([0, 1, 1, 5]))
        _feed(watch, [bytes(data)])
