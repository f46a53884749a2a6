"""Advisories and samples, for those who listen (jetstream-server.md section 15).

Nothing is made of it while nobody listens.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any, Final

from broker.streams.requests import dumps, time_text

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort

_EVENT: Final = "$JS.EVENT."
_TYPE: Final = "io.nats.jetstream."
#: Names in subjects, of events of a consumer.
_SUBJECTS: Final = {
    "max_deliver": "MAX_DELIVERIES",
    "nak": "MSG_NAKED",
    "terminated": "MSG_TERMINATED",
    "consumer_pause": "PAUSE",
    "consumer_group_pinned": "PINNED",
    "consumer_group_unpinned": "UNPINNED",
}
_PAST: Final = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}


class Advisories:
    """Publishes what happens: advisories and samples of acknowledgements.

    Args:
        bus: NATS.
        clock: The time.
    """

    def __init__(self, bus: StreamsPort, clock: Clock) -> None:
        self._bus, self._clock = bus, clock

    def audit(self, subject: bytes, request: bytes, response: bytes) -> None:
        """A request to the API was answered. Who has asked is not known here."""
        texts = {"subject": subject, "request": request, "response": response}
        said = {name: text.decode(errors="replace") for name, text in texts.items() if text}
        self._say("ADVISORY.API", "advisory.v1.api_audit", {"server": self._bus.id, "client": {"acc": "$G"}, **said})

    def stream(self, name: str, action: str) -> None:
        """Something was done with a stream."""
        said = {"stream": name, "action": action}
        self._say(f"ADVISORY.STREAM.{_PAST[action]}.{name}", "advisory.v1.stream_action", said)

    def consumer(self, consumer: Consumer, action: str) -> None:
        """Something was done with a consumer."""
        place = f"{consumer.stream.name}.{consumer.name}"
        said = {"stream": consumer.stream.name, "consumer": consumer.name, "action": action}
        self._say(f"ADVISORY.CONSUMER.{_PAST[action]}.{place}", "advisory.v1.consumer_action", said)

    def about(self, consumer: Consumer, name: str, said: dict[str, Any]) -> None:
        """Something happened to a consumer, or to a message of it."""
        place = {"stream": consumer.stream.name, "consumer": consumer.name}
        subject = f"ADVISORY.CONSUMER.{_SUBJECTS[name]}.{consumer.stream.name}.{consumer.name}"
        self._say(subject, f"advisory.v1.{name}", {**place, **said})

    def about_message(
        self, consumer: Consumer, sequence: int, number: int, name: str, deliveries: int, reason: str = ""
    ) -> None:
        """A client said something of a message."""
        said: dict[str, Any] = {"consumer_seq": number, "stream_seq": sequence, "deliveries": deliveries}
        self.about(consumer, name, {**said, "reason": reason} if reason else said)

    def sampled(self, consumer: Consumer, sequence: int, number: int, took: int, deliveries: int) -> None:
        """A message was acknowledged, some nanoseconds after its delivery; sampled as configured."""
        text = consumer.config.sample_freq.removesuffix("%")
        if not text or consumer.config.ack_policy != "explicit" or random.random() * 100 >= int(text):
            return
        said = {"stream": consumer.stream.name, "consumer": consumer.name, "consumer_seq": number}
        said |= {"stream_seq": sequence, "ack_time": took, "deliveries": deliveries}
        self._say(f"METRIC.CONSUMER.ACK.{consumer.stream.name}.{consumer.name}", "metric.v1.consumer_ack", said)

    def _say(self, subject: str, kind: str, said: dict[str, Any]) -> None:
        name = (_EVENT + subject).encode()
        if self._bus.interested(name):
            about = {"type": _TYPE + kind, "id": secrets.token_hex(11), "timestamp": time_text(self._clock.wall())}
            self._bus.publish(name, dumps({**about, **said}))
