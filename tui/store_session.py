"""An open file store in the browser, also that of a clustered node, and the intact rows of a SQL store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import StantoolsError
from stantools.escaping import known
from stantools.format.crc import Crc
from stantools.inspection.records import kind_of
from stantools.notation import counted, format_size
from stantools.store.directory import Datastore
from stantools.store.locks import find_uses
from stantools.store.read_options import ReadOptions, open_store
from tui.cells import name_text
from tui.jobs import Job
from tui.session import ChannelSummary, ScanStage, SourceSession

if TYPE_CHECKING:
    from stantools.browse.browsed_channel import BrowsedChannel, FileState, ListedFile, OpenedRecords
    from stantools.inspection.advice import Advice
    from stantools.inspection.outcomes import ChannelOutcome
    from stantools.inspection.overview import ChannelOverview
    from stantools.inspection.start_verdict import StartVerdict
    from stantools.sources.source import Source
    from stantools.store.nodes import NodeFiles
    from stantools.store.ranges import Ranges


class StoreSession(SourceSession):
    """An open store.

    Args:
        path: The store's directory, as the user typed it.
        read_options: Options for reading it.
        workers: Number of files read in parallel.
        files: The clustered node of the file store, if it belongs to one.
        source: The source of which the store is a private copy, such as a SQL store.

    Attributes:
        store: The open store.
        forecasts: Of a normal start and of one with the truncate option, once known.

    Raises:
        StoreUnreadableError: It is not a store, cannot be listed, or is of release 0.1.
    """

    def __init__(
        self,
        path: Path,
        read_options: ReadOptions | None = None,
        *,
        workers: int = 2,
        files: NodeFiles | None = None,
        source: Source | None = None,
    ) -> None:
        self.files = files
        self._sql = source.sql if source else None
        self.store: Datastore
        super().__init__(path, read_options, workers=workers)
        self.source = source

    @property
    def VERBS(self) -> Sequence[str]:  # type: ignore[override]  # noqa: N802
        return ("salvage", "export", "migrate") if self._sql else SourceSession.VERBS

    def _open(self) -> None:
        self.store = open_store(self.path, self.read_options)
        self._in_root: Mapping[str, Ranges] = {}
        self._outcomes: dict[str, ChannelOutcome] | None = None
        self._start_verdict: StartVerdict | None = None
        self._reset(self.store.channel_names)

    @property
    def named(self) -> Path:
        """The path for commands about the whole: the store, or its node, or the archive that holds it."""
        return Path(known(str(self.files.path if self.files else self.path)))

    @property
    def key(self) -> bytes | None:
        return self.store.key

    @property
    def crc(self) -> Crc:
        return self.store.crc

    def use_key(self, key: bytes | None) -> None:
        """Uses another encryption key, and repeats the forecast with it; None shows payloads as they are stored."""
        self.read_options = replace(self.read_options, encryption_key=key)
        self.store.key = key
        if self.stage >= ScanStage.FORECAST:
            self.close()
            self.forecasts, self.forecast_problem = None, ""
            self._job = Job("scan", self._finish).start()
        self.touch()

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

    def start_outlook(self) -> tuple[str, bool] | None:
        start = self.start_verdict()
        return (start.sentence(), start.harmless) if start else None

    def advice(self) -> Advice | None:
        """Returns the one safe next step; None before the forecast."""
        if self.forecasts is None and not self.forecast_problem:
            return None
        from stantools.inspection.advice import advise

        if self._advice is None or self._advice[0] != self.revision:
            findings = list(self.findings())
            step = advise(self.named, findings, self.start_verdict(), self.uses, self.outcomes, self.path)
            self._advice = (self.revision, step)
        return self._advice[1]

    def about(self) -> Sequence[str]:
        overview = self.overview
        if overview is None:
            return ()
        parts = [name_text(str(self.path))]
        if overview.server is not None:
            parts.append(f"cluster {name_text(overview.server.cluster_id)}")
        if overview.era:
            parts.append(f"written by {overview.era}")
        parts.append(counted(len(overview.clients), "client"))
        parts.append(f"{format_size(self.totals.disk_bytes)} on disk")
        return parts

    def channel(self, name: str) -> BrowsedChannel:
        from stantools.browse.store_channel import StoreChannel

        return StoreChannel(self.store, name, self.survey(name))

    def records(self, path: Path, channel: str | None) -> OpenedRecords | None:
        from stantools.browse.store_channel import store_records

        return store_records(self.store, path, self.survey(channel)) if kind_of(path.name) is not None else None

    def listed(self, channel: str | None) -> tuple[Sequence[ListedFile], dict[Path, FileState]]:
        if channel is not None:
            return super().listed(channel)
        from stantools.browse.store_channel import root_files

        return list(root_files(self.store)), {}

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
        if self.files or self._sql:
            self._look_at_source(job)
            return
        result = self.overview = root_overview(self.store)
        self.touch()
        known = {client.id: client for client in result.clients}
        for each in channel_overviews(self.store, known, workers=self.workers):
            result.channels.append(each)
            self._summarise(each)
            self.touch()
            job.advance(1)
        result.era = era(result)

    def _summarise(self, channel: ChannelOverview) -> None:
        facts = self.channels.get(channel.name)
        if facts is None:
            return  # a channel that is only in the log of a node has no files
        filled = [each for each in channel.slices if each.count]
        facts.overview = channel
        facts.summary = ChannelSummary(
            channel.count,
            channel.first_seq,
            channel.last_seq,
            channel.bytes,
            channel.disk_bytes,
            len(channel.slices),
            filled[0].first_timestamp if filled else 0,
            filled[-1].last_timestamp if filled else 0,
            len(channel.subscriptions),
            max((each.lag for each in channel.subscriptions), default=0),
        )
        self.totals.by_index += channel.count
        self.totals.disk_bytes += channel.disk_bytes

    def _look_at_source(self, job: Job[None]) -> None:
        """Reads a clustered node, whose clients and subscriptions are in its log, or the rows of a SQL store."""
        if self.files:
            from stantools.inspection.node import node_overview

            self.node, self.overview = node_overview(self.files, self.read_options)
        else:
            from stantools.inspection.overview import channel_overviews
            from stantools.inspection.sql_inspection import sql_overview

            assert self._sql
            self.overview = sql_overview(self._sql)
            intact = {each.name: each for each in channel_overviews(self.store, {}, workers=self.workers)}
            for each in self.overview.channels:
                if each.name in intact:
                    each.slices = intact.pop(each.name).slices
            self.overview.channels += intact.values()  # channels that a server does not recover
        for each in self.overview.channels:
            self._summarise(each)
        self.touch()
        job.advance(len(self.channels))

    def _verify(self, job: Job[None]) -> None:
        from stantools.inspection.sql_inspection import verify_sql
        from stantools.inspection.survey_jobs import survey_channels
        from stantools.inspection.verify import verify_channel, verify_root

        names = list(self.channels)
        job.begin_phase("checking every byte", self.store.data_size(names))
        self.stage = ScanStage.SCAN
        root = verify_root(self.store)
        self._in_root = root.messages
        verified = verify_sql(self._sql) if self._sql else None
        of_rows = {each.name: each for each in verified.channels} if verified else {}
        found = verified.findings if verified else [*(self.node.findings if self.node else ()), *root.findings]
        self.root_findings = [each for each in found if each.channel not in of_rows or not of_rows]
        self.totals.add_findings(self.root_findings)
        self.touch()
        for survey in survey_channels(self.store, names, workers=self.workers, progress=job.advance):
            report = verify_channel(self.store.path, survey, self.store.crc, root.clients)
            facts = self.channels[survey.files.name]
            facts.survey = survey
            if verified:  # the rows are judged, not the private copy of the intact ones
                facts.findings = [each for each in verified.findings if each.channel == facts.name]
                facts.verdict = of_rows.get(facts.name, report.verdict)
            else:
                facts.findings, facts.verdict = report.findings, report.verdict
            self.totals.add_channel(facts)
            self.touch()
            job.check()
        self.scanned = True

    def _forecast(self, job: Job[None]) -> None:
        from stantools.inspection.forecast import forecast_both
        from stantools.inspection.forecast.server_options import own_server
        from stantools.inspection.forecast.sound_slices import sound_slices
        from stantools.inspection.source_queries import signs_of_use
        from stantools.inspection.sql_inspection import forecast_sql

        job.begin_phase("forecasting a start", self.store.data_size(list(self.channels)))
        self.stage = ScanStage.FORECAST
        if self.source and self._sql:
            self.uses = signs_of_use(self.source)
        else:
            self.uses = [] if self.archived else find_uses(self.store.path)
        self.touch()
        options = own_server(self.store, workers=self.workers)
        try:
            if self._sql:
                self.forecasts = forecast_sql(self._sql, options)[0]
                self.touch()
                return
            sound = (each for facts in self.channels.values() if facts.survey for each in sound_slices(facts.survey))
            self.forecasts = forecast_both(self.store, options, progress=job.advance, sound=sound)
        except StantoolsError as problem:  # no known fact depends on it
            self.forecast_problem = problem.message
        self.touch()
