"""Many clients put and get keys at the same time: what they are told is what a real server tells them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests import natsclient, servers
from tests.brokers import Broker

_CLIENTS = 8
_KEYS = 5
_ROUNDS = 6
_DIRECT = "$JS.API.DIRECT.GET.KV_b"
_TIME = re.compile(r"\A20\d\d-\d\d-\d\dT[\d:.]+Z\Z")


def _told(message: Any) -> tuple[dict[str, str], bytes]:
    """What a get is answered, but for the time."""
    headers = dict(message.headers or {})
    if "Nats-Time-Stamp" in headers:
        assert _TIME.match(headers.pop("Nats-Time-Stamp"))
    return headers, message.data


async def _use(url: str) -> list[Any]:
    """Puts and gets, all clients at once. Returns what is the same whoever comes first."""
    clients = [await natsclient.connect(url) for _ in range(_CLIENTS)]
    config = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True, "discard": "new"}
    await clients[0].jetstream().add_stream(name="KV_b", subjects=["$KV.b.>"], **config)
    asked: list[str] = []

    async def listen(message: Any) -> None:
        asked.append(message.subject)

    found: list[Any] = []
    for number in range(_ROUNDS):
        if number == _ROUNDS - 1:
            # Others may see what is asked; it is answered all the same, and once.
            await clients[0].subscribe("$JS.API.>", cb=listen)
            await clients[0].flush()
        # Each client has keys of its own, so what it gets is what it has put, in whatever order the server reads.
        names = [[f"{client}.{key}" for key in range(_KEYS)] for client in range(_CLIENTS)]
        await asyncio.gather(
            *(
                clients[client].request(f"$KV.b.{name}", b"%d of %b" % (number, name.encode()))
                for client in range(_CLIENTS)
                for name in names[client]
            )
        )
        gets = (
            clients[client].request(f"{_DIRECT}.$KV.b.{name}") for client in range(_CLIENTS) for name in names[client]
        )
        for headers, data in map(_told, await asyncio.gather(*gets)):
            # Which sequence a key has depends on who was first.
            assert int(headers.pop("Nats-Sequence")) in range(1 + number * 40, 41 + number * 40)
            found.append((headers, data))
    others = [
        (f"{_DIRECT}.$KV.b.none", b"", None),
        (f"{_DIRECT}.$KV.b.1.1", b"{}", None),
        (f"{_DIRECT}.$KV.b.1.*", b"", None),
        (f"{_DIRECT}.$KV.b.1.1", b"", {"A": "b"}),
        (_DIRECT, b'{"last_by_subj":"$KV.b.7.4"}', None),
        (_DIRECT, b'{"seq":1}', None),
        (_DIRECT, b"", None),
    ]
    for _ in range(3):
        for subject, body, headers in others:
            told, data = _told(await clients[1].request(subject, body, headers=headers))
            told.pop("Nats-Sequence", None)
            # Which key is the last of many depends on who was first.
            last = subject.endswith("*")
            found.append((told.keys() if last else told, b"" if last else data))
    await clients[0].flush()
    found.append(sorted(asked))
    for client in clients:
        await client.close()
    return found


# 2.15 takes a body beside a subject in the request, too.
@pytest.mark.parametrize("version", [each for each in servers.available() if each.startswith("2.11.")])
async def test_keys_of_many_clients(tmp_path: Path, version: str) -> None:
    with (
        servers.NatsServer(tmp_path / "real", version) as server,
        Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store") as broker,
    ):
        theirs, ours = await _use(server.url), await _use(broker.url)
        assert "rror" not in broker.said()
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        assert other == one
