"""Consumers with an exact state, where none can be given to the server: they get there by receiving and acknowledging.

A consumer is made so that it begins behind what is done with, is given headers only, and as many of them as were
delivered; all are acknowledged but those that should be pending. Only then it gets its own configuration. Until that
last step its description says that it is not finished, so that after an interruption it is made anew; behind it, it
belongs to its users and is left alone. Between the two there is a pause, as servers write a consumer's state a tenth of
a second late, and must not be able to forget it once it is finished.

Servers before 2.14 show an ack floor of 0 until there was an acknowledgement. There the message before the first
pending one is delivered and acknowledged too, which sets the floor right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from stantools.migration.publish.answering import consumer_info
from stantools.migration.publish.delivery import Delivery, Standing, plan_delivery
from stantools.migration.publish.pull import deliver_by_pull
from stantools.migration.publish.push import deliver_by_push
from stantools.migration.publish.retry import SetBackError
from stantools.migration.target.errors import ApiError

if TYPE_CHECKING:
    from stantools.migration.publish.source import Source
    from stantools.migration.target.jetstream import JetStream

#: Description of a consumer that is being made.
UNFINISHED: Final = "stantools: not finished yet"

#: From this version on servers show the ack floor of a consumer from its beginning.
_FLOOR_FROM: Final = (2, 14, 0)
#: Nothing is redelivered while the consumer is made.
_LONG: Final = 24 * 3600 * 1_000_000_000
#: Left out meanwhile: they limit or slow down what is delivered.
_REMOVED: Final = ("backoff", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "sample_freq", "pause_until")
_IN_USE: Final = 10013


class Consumer(Protocol):
    """A consumer to make."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration."""


@dataclass
class Consumers:
    """The consumers of one stream.

    Attributes:
        js: JetStream.
        stream: The stream.
        source: What it holds.
        wanted: The consumers to make, with their positions.
        made: Names of those that were made.
    """

    js: JetStream
    stream: str
    source: Source
    wanted: Sequence[tuple[Consumer, Standing]]
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._brought: dict[str, tuple[dict[str, Any], Delivery]] = {}

    async def bring(self) -> bool:
        """Makes those that are not there or not finished. May be called again when it has failed.

        Returns:
            Whether some were brought to their states, and are to be finished.

        Raises:
            SetBackError: One got another state than it should have.
            StantoolsError: One could not be made.
        """
        for consumer, position in self.wanted:
            there = await self.js.consumer_info(self.stream, consumer.name)
            if there is not None:
                if there["config"].get("description") != UNFINISHED or self._is_right(consumer.name, there):
                    continue
                await self.js.consumer_delete(self.stream, consumer.name)
            await self._make(consumer, position)
            self.made += [consumer.name] if consumer.name not in self.made else []
        return bool(self._brought)

    async def finish(self) -> None:
        """Gives those that were brought to their states their configurations. May be called again when it has failed.

        Raises:
            SetBackError: The server has forgotten the state of one; all has to be done again.
            TargetError: Something else failed.
        """
        for name in self._brought:
            if not self._is_right(name, info := await consumer_info(self.js, self.stream, name)):
                raise self._set_back(name, info)
        for name in list(self._brought):
            await self._configure(self._brought[name][0])
            del self._brought[name]

    async def _make(self, consumer: Consumer, position: Standing) -> None:
        self._brought.pop(consumer.name, None)
        config = {key: value for key, value in consumer.config.items() if not key.startswith("opt_start_")}
        if position.delivered:
            what = f"consumer {consumer.name} of stream {self.stream}"
            lead = self.js.connection.version < _FLOOR_FROM
            delivery = plan_delivery(self.source, what, position, config.get("filter_subject"), lead=lead)
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": delivery.start}
            if delivery.count:
                await self._deliver(consumer.name, config, delivery)
                return
        await self._configure(config)

    async def _deliver(self, name: str, config: dict[str, Any], delivery: Delivery) -> None:
        """Makes a consumer, and brings it to its state."""
        setup = {key: value for key, value in config.items() if key not in _REMOVED}
        setup |= {"ack_wait": _LONG, "max_ack_pending": -1, "max_deliver": -1, "headers_only": True}
        setup["description"] = UNFINISHED
        deliver = deliver_by_push if config.get("deliver_subject") else deliver_by_pull
        await deliver(self.js, self.stream, name, setup, delivery)
        self._brought[name] = config, delivery
        if not self._is_right(name, info := await consumer_info(self.js, self.stream, name)):
            raise self._set_back(name, info)

    async def _configure(self, config: Mapping[str, Any]) -> None:
        """Gives a consumer its configuration."""
        for pause in (0.05, 0.2, 1.0, None):
            try:
                await self.js.consumer_create(self.stream, config)
                return
            except ApiError as problem:
                # Another server of a cluster may believe for a moment that we still listen.
                if pause is None or problem.err_code != _IN_USE:
                    raise
                await asyncio.sleep(pause)

    def _is_right(self, name: str, info: Mapping[str, Any]) -> bool:
        """Whether a consumer that is not finished has the state that it should have."""
        if name not in self._brought:
            return False
        _, delivery = self._brought[name]
        reached = int(info["delivered"]["stream_seq"]), int(info["num_ack_pending"])
        return reached == (delivery.last, len(delivery.pending))

    def _set_back(self, name: str, info: Mapping[str, Any]) -> SetBackError:
        _, delivery = self._brought[name]
        return SetBackError(
            f"consumer {name} of stream {self.stream} is at sequence {info['delivered']['stream_seq']} with "
            f"{info['num_ack_pending']} pending messages, expected {delivery.last} with {len(delivery.pending)}",
            "if somebody else uses it already, stop them; then run the command again",
        )
