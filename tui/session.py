"""An open store in the browser, and the facts known so far. Independent of the terminal.

The scan answers questions in this order: the contents of the store (indexes and logs), its damage (every byte), the
behaviour of the server (a forecast). Results arrive channel by channel while screens already show them; a new
`revision` tells them about news.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import StantoolsError
from stantools.escaping import known
from stantools.inspection.findings import RANKS, Finding
from stantools.store.directory import Datastore
from stantools.store.locks import StoreUse, find_uses
from stantools.store.read_options import ReadOptions, open_store
from tui.jobs import Job

# The readers are imported by the scan, after the first picture is on the screen.
if TYPE_CHECKING:
    from stantools.inspection.advice import Advice
    from stantools.inspection.forecast.channel_forecast import Forecast
    from stantools.inspection.node import NodeReport
    from stantools.inspection.outcomes import ChannelOutcome
    from stantools.inspection.overview import ChannelOverview, Overview
    from stantools.inspection.start_verdict import StartVerdict
    from stantools.inspection.survey import ChannelSurvey
    from stantools.inspection.verify import ChannelVerdict
    from stantools.store.nodes import NodeFiles
    from stantools.store.ranges import Ranges

#: Findings kept for each severity.
MOST_FIRST = 50


class ScanStage(enum.IntEnum):
    NAMES = 0
    OVERVIEW = 1
    SCAN = 2
    FORECAST = 3
    COMPLETE = 4


@dataclass
class ChannelFacts:
    name: str
    overview: ChannelOverview | None = None  #: facts from its indexes and logs; None before they are read
    survey: ChannelSurvey | None = None  #: contents of its slices; None before the scan
    verdict: ChannelVerdict | None = None  #: sequences that are intact, damaged or missing
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


class StoreSession:
    """An open store. The constructor reads only the names in its root.

    Args:
        path: The store's directory, as the user typed it.
        reading: Options for reading it.
        workers: Number of files read in parallel.
        files: The clustered node of the file store, if it belongs to one.

    Attributes:
        node: Contents of the node's Raft log and snapshots, once read.
        channels: Facts of each channel, by name, sorted.
        overview: Server, clients and names of the root; its list of channels grows during the scan.
        root_findings: Findings about the root; the others belong to their channels.
        totals: Sums over all channels.
        forecasts: Of a normal start and of one with the truncate option, once known.
        forecast_problem: The reason why a start cannot be forecast.
        uses: Signs of a process that uses the store.
        stage: Progress of the scan.

    Raises:
        StoreUnreadableError: It is not a store, cannot be listed, or is of release 0.1.
    """

    def __init__(
        self, path: Path, read_options: ReadOptions | None = None, *, workers: int = 2, files: NodeFiles | None = None
    ) -> None:
        self.path = path
        self.files = files
        self.read_options = read_options or ReadOptions()
        self.workers = workers
        self.store: Datastore
        self._job: Job[None] | None = None
        self._lock = threading.Lock()
        self.revision = 0  #: incremented with all news
        self._open()

    def _open(self) -> None:
        self.store = open_store(self.path, self.read_options)
        self.channels = {name: ChannelFacts(name) for name in self.store.channel_names}
        self.overview: Overview | None = None
        self.node: NodeReport | None = None
        self.root_findings: list[Finding] = []
        self.totals = StoreTotals()
        self.forecasts: tuple[Forecast, Forecast] | None = None
        self.forecast_problem = ""
        self.uses: list[StoreUse] = []
        self.stage = ScanStage.NAMES
        self.scanned = False
        self._advice: tuple[int, Advice] | None = None
        self._in_root: Mapping[str, Ranges] = {}
        self._outcomes: dict[str, ChannelOutcome] | None = None
        self._start_verdict: StartVerdict | None = None
        self.touch()

    @property
    def named(self) -> Path:
        """The path for commands about the whole: the store, or its node, or the archive that holds it."""
        return Path(known(str(self.files.path if self.files else self.path)))

    @property
    def archived(self) -> bool:
        """Whether the store is a private copy of what an archive holds, which nothing uses."""
        return known(str(self.path)) != str(self.path)

    @property
    def job(self) -> Job[None] | None:
        return self._job

    def start(self) -> Job[None]:
        self._job = Job("scan", self._scan)
        return self._job.start()

    def rescan(self) -> Job[None]:
        """Opens the store again and restarts the scan.

        Raises:
            StoreUnreadableError: It is no longer a store; the session stays unchanged.
        """
        self.close()
        self._open()
        return self.start()

    def close(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job.wait(5)

    def use_key(self, key: bytes | None) -> None:
        """Uses another encryption key from now on, and repeats the forecast with it.

        `key` is the key as given to the server; None shows payloads as they are stored.
        """
        self.read_options = replace(self.read_options, encryption_key=key)
        self.store.key = key
        if self.stage >= ScanStage.FORECAST:
            self.close()
            self.forecasts, self.forecast_problem = None, ""
            self._job = Job("scan", self._finish).start()
        self.touch()

    def touch(self) -> None:
        with self._lock:
            self.revision += 1

    def findings(self) -> Iterator[Finding]:
        """Yields all findings, first of the root, then channel by channel."""
        yield from self.root_findings
        for facts in list(self.channels.values()):
            yield from facts.findings

    @property
    def outcomes(self) -> dict[str, ChannelOutcome]:
        """The outcome for the messages of each channel scanned so far."""
        if self._outcomes is not None:
            return self._outcomes
        from stantools.inspection.outcomes import store_outcomes

        verdicts = [each.verdict for each in list(self.channels.values()) if each.verdict]
        found = store_outcomes(((each.outcome, each.foreign) for each in verdicts), self._in_root)
        if self.scanned:
            self._outcomes = found
        return found

    def start_verdict(self) -> StartVerdict | None:
        """Returns the verdict about a normal start; None before the forecast."""
        if self.forecasts is None:
            return None
        from stantools.inspection.start_verdict import judge_start

        if self._start_verdict is None or self._start_verdict.forecast is not self.forecasts[0]:
            self._start_verdict = judge_start(self.forecasts[0], self.outcomes)
        return self._start_verdict

    def advice(self) -> Advice | None:
        """Returns the one safe next step; None before the forecast."""
        if self.forecasts is None and not self.forecast_problem:
            return None
        from stantools.inspection.advice import advise

        if self._advice is None or self._advice[0] != self.revision:
            findings = list(self.findings())
            step = advise(self.named, findings, self.start_verdict(), self.uses, self.outcomes)
            self._advice = (self.revision, step)
        return self._advice[1]

    def _scan(self, job: Job[None]) -> None:
        self.look(job)
        self._verify(job)
        self._finish(job)

    def _finish(self, job: Job[None]) -> None:
        self._forecast(job)
        self.stage = ScanStage.COMPLETE
        self.touch()

    def look(self, job: Job[None]) -> None:
        from stantools.inspection.overview import channel_overviews, era, root_overview

        job.begin_phase("reading indexes", len(self.channels))
        self.stage = ScanStage.OVERVIEW
        result = root_overview(self.store)
        self.overview = result
        if self.files:
            self._look_at_node(self.files, job)
            return
        self.touch()
        known = {client.id: client for client in result.clients}
        for each in channel_overviews(self.store, known, workers=self.workers):
            result.channels.append(each)
            self.channels[each.name].overview = each
            self.totals.by_index += each.count
            self.totals.disk_bytes += each.disk_bytes
            self.touch()
            job.advance(1)
        result.era = era(result)

    def _look_at_node(self, files: NodeFiles, job: Job[None]) -> None:
        """Reads a clustered node: clients and subscriptions are in its log."""
        from stantools.inspection.node import node_overview

        self.node, self.overview = node_overview(files, self.read_options)
        for each in self.overview.channels:
            # A channel that is only in the log has no files.
            if each.name in self.channels:
                self.channels[each.name].overview = each
                self.totals.by_index += each.count
                self.totals.disk_bytes += each.disk_bytes
        self.touch()
        job.advance(len(self.channels))

    def _verify(self, job: Job[None]) -> None:
        from stantools.inspection.survey_jobs import survey_channels
        from stantools.inspection.verify import verify_channel, verify_root

        names = list(self.channels)
        job.begin_phase("checking every byte", self.store.data_size(names))
        self.stage = ScanStage.SCAN
        root = verify_root(self.store)
        self._in_root = root.messages
        self.root_findings = [*(self.node.findings if self.node else ()), *root.findings]
        self.totals.add_findings(self.root_findings)
        self.touch()
        for survey in survey_channels(self.store, names, workers=self.workers, progress=job.advance):
            report = verify_channel(self.store.path, survey, self.store.crc, root.clients)
            facts = self.channels[survey.files.name]
            facts.survey, facts.findings, facts.verdict = survey, report.findings, report.verdict
            self.totals.add_channel(facts)
            self.touch()
            job.check()
        self.scanned = True

    def _forecast(self, job: Job[None]) -> None:
        from stantools.inspection.forecast import forecast_both
        from stantools.inspection.forecast.server_options import own_server
        from stantools.inspection.forecast.sound_slices import sound_slices

        job.begin_phase("forecasting a start", self.store.data_size(list(self.channels)))
        self.stage = ScanStage.FORECAST
        self.uses = [] if self.archived else find_uses(self.store.path)
        self.touch()
        options = own_server(self.store, workers=self.workers)
        try:
            sound = (each for facts in self.channels.values() if facts.survey for each in sound_slices(facts.survey))
            self.forecasts = forecast_both(self.store, options, progress=job.advance, sound=sound)
        except StantoolsError as problem:  # no known fact depends on it
            self.forecast_problem = problem.message
        self.touch()
