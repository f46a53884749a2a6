"""Options of a replay: messages, destination and pace. Nothing here imports numpy."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.options import AGE, ARCHIVED, CHANNELS, CLUSTER_ID, GENERATION, SEQUENCES, SINCE, UNTIL, option

_MAX_SPEED = 1e6


class PublishKind(enum.StrEnum):
    CORE = "core"
    JETSTREAM = "jetstream"
    STREAMING = "streaming"


def _read_speed(text: str) -> float | None:
    """Reads a speed; None: as fast as possible."""
    if text == "max":
        return None
    if text == "original":
        return 1.0
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed <= _MAX_SPEED:
        raise ValueError(f"{text!r} is not a speed: original, max, or a number such as 10 or 0.5")
    return speed


@dataclass(frozen=True)
class ReplayOptions:
    channels: tuple[str, ...] = CHANNELS.field()
    sequences: tuple[int | None, int | None] | None = SEQUENCES.field()
    since: int | None = SINCE.field()
    until: int | None = UNTIL.field()
    kind: PublishKind = option(
        "Publish to NATS subjects, to streams that listen on them, or to channels of a streaming server.",
        "--as",
        default=PublishKind.CORE,
        choices=PublishKind,
    )
    speed: float | None = option(
        "At the original pace, N times as fast, or as fast as possible.",
        default=1.0,
        read=_read_speed,
        written="original",
        metavar="original|N|max",
    )
    rate: float | None = option("Limit of messages per second.", kind=float, least=0, above=True, metavar="N")
    max_pause: int | None = AGE.field(help="Longest pause between messages.", metavar="TIME")
    rules: tuple[str, ...] = option(
        "Rewrite names: 'old.*=new.*'. * is one token ($1, $2 to reorder), > the rest; the first match counts.",
        "--subject",
        default=(),
        metavar="RULE",
    )
    prefix: str = option("Prefix of every subject, before a dot.", default="", metavar="PREFIX")
    origin_headers: bool = option("Add headers with the origin of messages: channel, sequence, time.", default=False)
    cluster_id: str | None = CLUSTER_ID.field(help="Cluster id of the streaming server; default: test-cluster.")
    client_id: str | None = option("Client id for the streaming server.", metavar="ID")
    discover_prefix: str | None = option("The streaming server's discover_prefix.", metavar="SUBJECT")
    resume: bool = option("Continue an interrupted replay.", default=False)
    state: Path | None = option(
        "File with the progress; default: a file in the current directory, named after the command's options.",
        kind=Path,
        metavar="FILE",
    )
    generation: str = GENERATION.field()
    archived: bool = ARCHIVED.field()

    def check(self) -> None:
        """Raises UsageError for an option that has no effect with this destination."""
        if self.kind is not PublishKind.STREAMING:
            for name in ("cluster_id", "client_id", "discover_prefix"):
                if getattr(self, name) is not None:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag} has no effect without --as streaming", "add that, or remove it")
        elif self.origin_headers:
            raise UsageError(
                "--origin-headers needs headers, which messages of a streaming server lack", "leave it out"
            )

    @property
    def streaming_id(self) -> str:
        """Cluster id of the streaming server; the default is that of servers and clients."""
        return self.cluster_id or "test-cluster"

    def identity(self, store: Path, servers: Sequence[str]) -> dict[str, Any]:
        """Returns the options that must be equal when a replay is resumed."""
        return {
            "store": os.path.realpath(store),
            "to": list(servers),
            "as": self.kind,
            "channels": list(self.channels),
            "rules": list(self.rules),
            "prefix": self.prefix,
            "generation": self.generation,
            "archived": self.archived,
            "cluster_id": self.streaming_id if self.kind is PublishKind.STREAMING else None,
        }
