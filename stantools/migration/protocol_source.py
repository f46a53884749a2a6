"""A streaming server whose files are out of reach, as the source of a migration. Nothing here imports numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import UsageError
from stantools.options import option


@dataclass(frozen=True)
class ProtocolSource:
    """A streaming server whose files are out of reach."""

    source: str = option(
        "Instead of STORE: read the named channels of this running streaming server through its protocol.",
        "--from",
        default="",
        metavar="URL",
    )
    cluster_id: str = option("With --from: the cluster id of the streaming server.", default="", metavar="ID")
    source_context: str | None = option(
        "With --from: take login and TLS from this nats context, if the URL does not have them.",
        "--from-context",
        metavar="NAME",
    )
    monitor: str = option(
        "With --from: its monitoring URL, which lists its channels and durables.",
        "--from-monitor",
        default="",
        metavar="URL",
    )
    copy: Path | None = option(
        "With --from: the directory of the copy; by default ID.copy. A second run continues it.",
        kind=Path,
        metavar="DIR",
    )

    @property
    def place(self) -> Path:
        return self.copy or Path(f"{self.cluster_id}.copy")

    def check(self, patterns: Sequence[str]) -> None:
        """Raises UsageError if the options do not fit together, or no channel is named."""
        if not self.source:
            if self.cluster_id or self.monitor or self.copy:
                raise UsageError("--cluster-id, --from-monitor and --copy belong to --from", "add --from URL")
            return
        if not self.cluster_id:
            raise UsageError("--from needs the cluster id of the streaming server", "add --cluster-id ID")
        if not self.monitor and not named(patterns):
            raise UsageError(
                "the protocol of streaming servers does not list channels",
                "name each with --channel NAME, without wildcards; or give --from-monitor http://HOST:8222",
            )


def named(patterns: Sequence[str]) -> bool:
    """Returns whether the patterns are names of channels, without wildcards."""
    from stantools.store.limits import is_channel_name

    return bool(patterns) and all(is_channel_name(each) and not set("*>") & set(each) for each in patterns)
