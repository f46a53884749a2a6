"""Advisories and samples of acknowledgements (jetstream-server.md section 15).

An advisory is made only if a subscriber exists for its subject.
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
#: Events of a consumer, and their names in subjects.
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
    def __init__(self, bus: StreamsPort, clock: Clock) -> None:
        self._bus, self._clock = bus, clock

    def audit(self, subject: bytes, request: bytes, response: bytes) -> None:
        """Reports a request to the API and its answer. The client is not known here."""
        texts = {"subject": subject, "request": request, "response": response}
        fields = {name: text.decode(errors="replace") for name, text in texts.items() if text}
        self._publish(
            "ADVISORY.API", "advisory.v1.api_audit", {"server": self._bus.id, "client": {"acc": "$G"}, **fields}
        )

    def stream(self, name: str, action: str) -> None:
        fields = {"stream": name, "action": action}
        self._publish(f"ADVISORY.STREAM.{_PAST[action]}.{name}", "advisory.v1.stream_action", fields)

    def consumer(self, consumer: Consumer, action: str) -> None:
        place = f"{consumer.stream.name}.{consumer.name}"
        fields = {"stream": consumer.stream.name, "consumer": consumer.name, "action": action}
        self._publish(f"ADVISORY.CONSUMER.{_PAST[action]}.{place}", "advisory.v1.consumer_action", fields)

    def about(self, consumer: Consumer, name: str, fields: dict[str, Any]) -> None:
        """Reports an event of a consumer, or of one of its messages."""
        place = {"stream": consumer.stream.name, "consumer": consumer.name}
        subject = f"ADVISORY.CONSUMER.{_SUBJECTS[name]}.{consumer.stream.name}.{consumer.name}"
        self._publish(subject, f"advisory.v1.{name}", {**place, **fields})

    def about_message(
        self, consumer: Consumer, sequence: int, number: int, name: str, deliveries: int, reason: str = ""
    ) -> None:
        """Reports a client's decision about a message."""
        fields: dict[str, Any] = {"consumer_seq": number, "stream_seq": sequence, "deliveries": deliveries}
        self.about(consumer, name, {**fields, "reason": reason} if reason else fields)

    def sampled(self, consumer: Consumer, sequence: int, number: int, took: int, deliveries: int) -> None:
        """Reports an acknowledgement `took` nanoseconds after the delivery, if the sampling selects it."""
        text = consumer.config.sample_freq.removesuffix("%")
        if not text or consumer.config.ack_policy != "explicit" or random.random() * 100 >= int(text):
            return
        fields = {"stream": consumer.stream.name, "consumer": consumer.name, "consumer_seq": number}
        fields |= {"stream_seq": sequence, "ack_time": took, "deliveries": deliveries}
        self._publish(f"METRIC.CONSUMER.ACK.{consumer.stream.name}.{consumer.name}", "metric.v1.consumer_ack", fields)

    def _publish(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        name = (_EVENT + subject).encode()
        if self._bus.interested(name):
            about = {"type": _TYPE + kind, "id": secrets.token_hex(11), "timestamp": time_text(self._clock.wall())}
            self._bus.publish(name, dumps({**about, **fields}))
