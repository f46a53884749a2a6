"""An open source in the browser, and the facts known so far. Independent of the terminal.

The scan answers questions in this order: the contents of the source (indexes and logs), its damage (every byte), the
behaviour of the server (a forecast). Results arrive channel by channel while screens already show them; a new
`revision` tells them about news. The streams of a JetStream directory are channels here, and consumers subscriptions.
Stores are in `tui.store_session`, JetStream directories in `tui.stream_session`.
"""

from __future__ import annotations

import enum
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stantools.escaping import known
from stantools.format.crc import Crc
from stantools.inspection.findings import RANKS, Finding
from stantools.store.locks import StoreUse
from stantools.store.read_options import ReadOptions
from tui.jobs import Job

# The readers are imported by the scan, after the first picture is on the screen.
if TYPE_CHECKING:
    from stantools.browse.browsed_channel import BrowsedChannel, FileState, ListedFile, OpenedRecords
    from stantools.inspection.advice import Advice
    from stantools.inspection.forecast.channel_forecast import Forecast
    from stantools.inspection.node import NodeReport
    from stantools.inspection.outcomes import ChannelOutcome
    from stantools.inspection.overview import ChannelOverview, Overview
    from stantools.inspection.stream_consumers import ConsumerLag
    from stantools.inspection.verify import ChannelVerdict
    from stantools.sources.source import Source

#: Findings kept for each severity.
MOST_FIRST = 50


class ScanStage(enum.IntEnum):
    NAMES = 0
    OVERVIEW = 1
    SCAN = 2
    FORECAST = 3
    COMPLETE = 4


@dataclass(frozen=True)
class ChannelSummary:
    """The content of a channel by its indexes and logs."""

    count: int
    first_seq: int
    last_seq: int
    bytes: int
    disk_bytes: int
    files: int  #: slices or blocks
    oldest: int = 0  #: time of its first message; 0 if unknown
    newest: int = 0
    subscriptions: int = 0
    lag: int = 0  #: the greatest one of a subscription


@dataclass
class ChannelFacts:
    name: str
    summary: ChannelSummary | None = None  #: facts from its indexes and logs; None before they are read
    overview: ChannelOverview | None = None  #: the same of a channel of a store, with its subscriptions
    survey: Any = None  #: result of the scan of its slices or blocks; None before
    verdict: ChannelVerdict | None = None  #: sequences that are intact, damaged or missing; None before the scan
    findings: list[Finding] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The worst severity: `unknown` before the scan, then `clean`, `info`, `warning` or `error`."""
        if self.verdict is None:
            return "unknown"
        return worst(self.findings)

    @property
    def intact(self) -> int:
        """Number of intact messages in its directory; 0 before the scan."""
        return self.verdict.outcome.count if self.verdict else 0

    @property
    def damaged(self) -> int:
        return self.verdict.damaged.count() if self.verdict else 0

    @property
    def missing(self) -> int:
        """Number of messages that are gone, or damaged beyond proof."""
        return self.verdict.outcome.missing.count() if self.verdict else 0


@dataclass
class StoreTotals:
    """Sums over all channels, kept up to date during the scan."""

    by_index: int = 0  #: messages in the indexes
    disk_bytes: int = 0  #: bytes of all files of channels
    unharmed: int = 0  #: channels without damage
    severities: dict[str, int] = field(default_factory=dict)  #: severity -> number of findings
    #: severity -> its first findings, at most `MOST_FIRST`
    first: dict[str, list[Finding]] = field(default_factory=dict)

    def add_findings(self, findings: list[Finding]) -> None:
        for finding in findings:
            severity = finding.severity.value
            self.severities[severity] = self.severities.get(severity, 0) + 1
            first = self.first.setdefault(severity, [])
            if len(first) < MOST_FIRST:
                first.append(finding)

    def add_channel(self, facts: ChannelFacts) -> None:
        self.add_findings(facts.findings)
        self.unharmed += facts.state in ("clean", "info")


def worst(findings: list[Finding]) -> str:
    return min((each.severity for each in findings), key=RANKS.__getitem__).value if findings else "clean"


class SourceSession(ABC):
    """An open source. The constructor reads only names.

    Args:
        path: The source, as the user typed it.
        read_options: Options for reading it.
        workers: Number of files read in parallel.

    Attributes:
        root: The directory that files in findings are relative to.
        channels: Facts of each channel or stream, by name, sorted.
        overview: Server, clients and names of a store's root; its list of channels grows during the scan.
        node: Contents of a clustered node's Raft log and snapshots, once read.
        root_findings: Findings about the source as a whole; the others belong to their channels.
        totals: Sums over all channels.
        forecast_problem: The reason why a start cannot be forecast.
        uses: Signs of a process that uses it.
        stage: Progress of the scan.
        opened: Another object whenever the source was opened again.

    Raises:
        StoreUnreadableError: It cannot be opened.
    """

    NOUN: ClassVar[str] = "channel"
    #: verbs whose plans work with it
    VERBS: ClassVar[Sequence[str]] = ("salvage", "compact", "truncate-bad-eof", "export", "migrate")
    FILES: ClassVar[str] = "slice"
    #: names of views that are called otherwise, by their usual names
    VIEW_NAMES: ClassVar[Mapping[str, str]] = {}

    def __init__(self, path: Path, read_options: ReadOptions | None = None, *, workers: int = 2) -> None:
        self.path = self.root = path
        self.read_options = read_options or ReadOptions()
        self.workers = workers
        self.source: Source | None = None  #: the source, unless it is the directory of a store
        self.consumers: dict[str, list[ConsumerLag]] = {}  #: of streams, once their indexes are read
        self._job: Job[None] | None = None
        self._lock = threading.Lock()
        self.revision = 0  #: incremented with all news
        self._open()

    def _reset(self, names: Sequence[str]) -> None:
        self.opened = object()
        self.channels = {name: ChannelFacts(name) for name in names}
        self.overview: Overview | None = None
        self.node: NodeReport | None = None
        self.forecasts: tuple[Forecast, Forecast] | None = None
        self.root_findings: list[Finding] = []
        self.totals = StoreTotals()
        self.forecast_problem = ""
        self.uses: list[StoreUse] = []
        self.stage = ScanStage.NAMES
        self.scanned = False
        self._advice: tuple[int, Advice] | None = None
        self.touch()

    @abstractmethod
    def _open(self) -> None: ...

    @property
    def named(self) -> Path:
        """The path for commands about the whole: the source, or the archive that holds it."""
        return Path(known(str(self.path)))

    @property
    def archived(self) -> bool:
        """Whether its files are a private copy, which nothing uses."""
        return known(str(self.path)) != str(self.path)

    @property
    def key(self) -> bytes | None:
        """The key for encrypted messages."""
        return self.read_options.encryption_key

    @property
    def crc(self) -> Crc:
        """The CRC of a store's records."""
        return Crc()

    @property
    def job(self) -> Job[None] | None:
        return self._job

    def start(self) -> Job[None]:
        self._job = Job("scan", self._scan)
        return self._job.start()

    def rescan(self) -> Job[None]:
        """Opens the source again and restarts the scan.

        Raises:
            StoreUnreadableError: It cannot be opened any more; the session stays unchanged.
        """
        self.close()
        self._open()
        return self.start()

    def close(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job.wait(5)

    @abstractmethod
    def use_key(self, key: bytes | None) -> None:
        """Uses another encryption key from now on, as given to the server; None for none."""

    def touch(self) -> None:
        with self._lock:
            self.revision += 1

    def findings(self) -> Iterator[Finding]:
        """Yields all findings, first of the whole, then channel by channel."""
        yield from self.root_findings
        for facts in list(self.channels.values()):
            yield from facts.findings

    def survey(self, name: str | None) -> Any:
        """Returns the result of the scan of a channel; None before."""
        facts = self.channels.get(name or "")
        return facts.survey if facts is not None else None

    @property
    @abstractmethod
    def outcomes(self) -> Mapping[str, ChannelOutcome]:
        """The outcome for the messages of each channel scanned so far."""

    @abstractmethod
    def start_outlook(self) -> tuple[str, bool] | None:
        """Returns a sentence about a start of the server, and whether it is harmless; None before the forecast."""

    @abstractmethod
    def advice(self) -> Advice | None:
        """Returns the one safe next step; None before the forecast."""

    @abstractmethod
    def about(self) -> Sequence[str]:
        """Returns facts about the whole."""

    def file_name(self, path: Path) -> str:
        """Returns the name of a file in findings."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    @abstractmethod
    def channel(self, name: str) -> BrowsedChannel:
        """Lists a channel as it is now. Raises `StoreUnreadableError`."""

    @abstractmethod
    def records(self, path: Path, channel: str | None) -> OpenedRecords | None:
        """Opens a file; None if its records cannot be shown. Raises `StoreUnreadableError`."""

    def listed(self, channel: str | None) -> tuple[Sequence[ListedFile], dict[Path, FileState]]:
        """Returns the files of a channel, or the files outside of channels, with states if scanned."""
        if channel is None:
            return (), {}
        found = self.channel(channel)
        return found.files(), found.states()

    @abstractmethod
    def _scan(self, job: Job[None]) -> None: ...
