"""Plays requests and publishes against a server, real or ours, and says what came back without what differs anyway."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import nats

from tests import natsclient

#: Members that differ from run to run, or from version to version.
ANYWAY = frozenset(
    (
        "ts",
        "created",
        "time",
        "first_ts",
        "last_ts",
        "cluster",
        "api",
        "metadata",
        "limits",
        "type",
        "allow_msg_ttl",
        "last_active",
        "pause_remaining",
        "active",
        "pinned_client_id",
        "pinned_ts",
    )
)
#: Which token of an acknowledgement's subject is the time of the message.
_TIME = 7
#: What nobody said anything to.
SILENCE = "silence"
Step = Sequence[Any]


async def play(url: str, steps: Iterable[Step], wait: float = 1.0) -> list[Any]:
    """Plays steps one after the other.

    Args:
        url: The server.
        steps: Each a subject, a body (text, or what becomes JSON), and perhaps headers, and if not one answer comes
            back, how many messages do, or with which status the last one: then equal ones in a row count as one, as
            their number may depend on how busy the machine is.
        wait: How long to wait for an answer (seconds).
    """
    async with natsclient.connected(url, allow_reconnect=False) as client:
        return [await _ask(client, wait, *step) for step in steps]


async def _gather(client: Any, subject: str, body: Any, end: int | str, patience: float = 10.0) -> Any:
    """Sends a request and returns the first messages that come back, up to a number or a status."""
    inbox = client.new_inbox()
    found: asyncio.Queue[Any] = asyncio.Queue()
    subscription = await client.subscribe(inbox, cb=found.put)
    await client.publish(subject, body.encode() if isinstance(body, str) else json.dumps(body).encode(), reply=inbox)
    messages = []
    try:
        async with asyncio.timeout(patience):
            while len(messages) != end and not (messages and _status(messages[-1]) == end):
                messages.append(await found.get())
    except TimeoutError:
        messages.append(None)
    await subscription.unsubscribe()
    came = [_delivered(each, inbox) for each in messages]
    return came if isinstance(end, int) else [each for each, _ in itertools.groupby(came)]


def _status(message: Any) -> str:
    return (message.headers or {}).get("Status", "") if message is not None else ""


def _delivered(message: Any, inbox: str) -> Any:
    if message is None:
        return SILENCE
    # Neither the time in the acknowledgement's subject nor the inbox are the same twice.
    reply = ".".join(token for i, token in enumerate(message.reply.split(".")) if i != _TIME)
    shown = "inbox" if message.subject == inbox else message.subject
    return (shown, reply, _headers(message), message.data)


def _headers(message: Any) -> dict[str, str]:
    found = {name: value for name, value in (message.headers or {}).items() if name != "Nats-Time-Stamp"}
    # The name of a pin is made up.
    return found if "Nats-Pin-Id" not in found else {**found, "Nats-Pin-Id": "made up"}


async def _ask(
    client: Any, wait: float, subject: str, body: Any = "", headers: dict[str, str] | None = None, end: int | str = 0
) -> Any:
    if end:
        return await _gather(client, subject, body, end)
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    try:
        answer = await client.request(subject, data, timeout=wait, headers=headers)
    except nats.errors.NoRespondersError:
        return 503
    except (TimeoutError, nats.errors.TimeoutError):
        return SILENCE
    return seen(answer)


def seen(message: Any) -> Any:
    """What a message says, without what differs anyway."""
    headers = _headers(message)
    try:
        value = json.loads(message.data)
    except ValueError:
        return (headers, message.data)
    return _plain(value) if not headers else (headers, _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if "err_code" in value:
            # Reasons why JSON is not valid are those of a library.
            text = value["description"].partition(":")[0] if value["err_code"] == 10025 else value["description"]
            return {"error": value["err_code"], "code": value["code"], "text": text}
        return {name: _plain(each) for name, each in value.items() if name not in ANYWAY}
    if isinstance(value, list):
        found = [_plain(each) for each in value]
        # Newer servers list what a stream copies in any order.
        copied = found and all(isinstance(each, dict) and "lag" in each for each in found)
        return sorted(found, key=str) if copied else found
    return value
