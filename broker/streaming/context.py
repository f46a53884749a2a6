"""What every part of the streaming server has at hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.stores.interface import Store
from broker.streaming.ids import Nuids
from broker.streaming.options import StreamingOptions
from broker.streaming.ports import Bus, Clock, Driver
from broker.streaming.timers import Timers


@dataclass(slots=True)
class Statistics:
    """Counters since the start, as monitoring shows them: publishes that could be decoded, and deliveries."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True)
class Context:
    """The world of the rules: options, store, bus, time, and who calls again."""

    options: StreamingOptions
    store: Store
    bus: Bus
    clock: Clock
    driver: Driver
    timers: Timers
    statistics: Statistics = field(default_factory=Statistics)
    nuids: Nuids = field(default_factory=Nuids)
