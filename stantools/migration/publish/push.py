"""Bringing a push consumer to its state: it is sent messages without being asked, and must be stopped at the right one.

It may have `max_ack_pending` messages open, and gets no more acknowledgements than that they and what is open make up
what it should be sent. When all that has come, it is left without a listener; then the rest is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from stantools.migration.publish.answering import acknowledge, keep_pending

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from stantools.migration.publish.delivery import Delivery
    from stantools.migration.target.jetstream import JetStream

_OPEN: Final = 4096


async def deliver_by_push(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: Delivery) -> None:
    """Makes a push consumer, and brings it to its state.

    Args:
        js: JetStream.
        stream: The stream.
        name: The consumer.
        setup: Its configuration meanwhile.
        delivery: What it has to be given.

    Raises:
        NoAnswerError: Messages did not come.
        TargetError: Something else failed.
    """
    connection = js.connection
    client, timeout = connection.client, connection.options.timeout
    open_limit = min(delivery.count, len(delivery.pending) + _OPEN)
    early = delivery.count - open_limit
    subject = client.new_inbox()
    came = acknowledged = 0
    # Answered when all have come.
    waiting: list[bytes] = []
    kept: list[bytes] = []
    news = asyncio.Event()

    async def take(message: Msg) -> None:
        nonlocal came, acknowledged
        if message.headers and message.headers.get("Status"):
            # Flow control: the consumer stops until it is answered.
            answer = message.reply or message.headers.get("Nats-Consumer-Stalled")
            if answer:
                await client.publish(answer)
            return
        came += 1
        if message.metadata.sequence.stream in delivery.pending:
            kept.append(message.reply.encode())
        elif acknowledged < early:
            acknowledged += 1
            await client.publish(message.reply, b"+ACK")
        else:
            waiting.append(message.reply.encode())
        news.set()

    group = str(setup.get("deliver_group") or "")
    subscription = await client.subscribe(subject, queue=group, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
    listening = True
    try:
        await js.consumer_create(stream, {**setup, "deliver_subject": subject, "max_ack_pending": open_limit})
        with connection.watch(subject) as failed:
            while came < delivery.count:
                news.clear()
                what = f"the creation of consumer {name} with message {came + 1} of {delivery.count}"
                waiter = asyncio.ensure_future(news.wait())
                try:
                    await connection.wait_for(waiter, failed, timeout, what)
                finally:
                    waiter.cancel()
        await subscription.unsubscribe()
        listening = False
        await acknowledge(js, stream, name, waiting, len(kept))
        await keep_pending(js, kept)
    finally:
        if listening:
            await subscription.unsubscribe()
