"""Forecasts of starts on a JetStream directory, by version, and their report: what a start destroys comes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, Role, columns
from stantools.inspection.stream_advice import safe_step
from stantools.inspection.stream_forecast.cluster_start import ORPHAN_SECONDS, StreamFate, cluster_start
from stantools.inspection.stream_forecast.directory_forecast import DirectoryForecast, StartedStream, forecast_directory
from stantools.inspection.stream_forecast.losses import loss_sentences
from stantools.inspection.stream_forecast.versions import NEWEST, chosen_rules
from stantools.notation import counted, describe_ranges, some_of
from stantools.progress import Progress
from stantools.sources.jetstream import SYSTEM
from stantools.sources.source import Source
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.survey import StreamSurvey

_NAMED: Final = 3
_COLUMNS: Final = columns(
    *("stream", "first", "last", "messages", "bytes", "readable", "delivered", "destroyed", "consumers", "problem"),
    numbers=("first", "last", "messages", "bytes", "consumers"),
    roles={"destroyed": "bad"},
    keys=("stream", "problem"),
    details=("consumers", "bytes", "first", "readable"),
)


@dataclass
class StartForecasts:
    """Forecasts of starts on one directory, the version of interest first."""

    source: Source
    forecasts: list[DirectoryForecast]
    single: bool  #: the user named the version

    @property
    def harmless(self) -> bool:
        return not self.is_node and all(is_harmless(each) for each in self.forecasts)

    def sentence(self) -> str:
        return start_sentence(self.forecasts[0])

    def as_json(self) -> dict[str, Any]:
        return versions_json([each.as_json() for each in self.forecasts], single=self.single)

    def report(self) -> Report:
        first, *others = self.forecasts
        report = Report(code=ExitCode.CLEAN if self.harmless else ExitCode.FINDINGS, document=self.as_json)
        lines = [start_sentence(first)]
        for each in others:
            same = _effects(each) == _effects(first)
            lines.append(f"A start of nats-server {each.version} does the same." if same else start_sentence(each))
        report.lead = [
            (line, "good" if is_harmless(each) else "bad") for line, each in zip(lines, self.forecasts, strict=True)
        ]
        if self.is_node:
            report.lead.append(self._in_its_cluster())
        if logged := self.source.logged_streams():
            named = some_of(list(map(escape, logged)), _NAMED)
            text = f"Only Raft logs are here of {named}: a salvage takes their messages from these"
            report.lead.append((f"{text}, as far as they reach back.", "bad"))
        for each in self.forecasts if len({_effects(each) for each in self.forecasts}) > 1 else (first,):
            report.tables.append(ReportTable(_COLUMNS, [_row(name, one) for name, one in each.streams.items()]))
            report.list_remarks(_file_remarks(each), "file", ": see -o json")
            report.list_remarks(
                (ReportRemark("log", escape(text.strip())) for level, text in each.log if level != "INF"),
                "line",
                ": see -o json",
            )
        report.next.append(self.next_step())
        return report

    @property
    def is_node(self) -> bool:
        """Whether the directory is one node of a cluster."""
        folders = (each.path.absolute().parents[2] / SYSTEM for each in self.source.streams)
        return bool(self.source.raft_groups) or any(each.is_dir() for each in folders)

    def _in_its_cluster(self) -> tuple[str, Role]:
        """Says what the server of one node does in its cluster, which has the last word on its streams."""
        source = self.source
        text = "This is one node of a cluster, and the forecast is that of a server without one. "
        cluster = cluster_start(source.streams, source.raft_groups, NEWEST)
        orphans = [each for each in source.streams if cluster.may_be_orphan(each.node, (each.account, each.name))]
        if orphans:
            named = some_of([escape(each.full_name) for each in orphans], _NAMED)
            text += (
                f"In its cluster, the server deletes {named} {ORPHAN_SECONDS} seconds after the start: the meta group "
            )
            return text + "on this node does not assign them. Name the directories of all nodes for a forecast.", "bad"
        text += (
            f"In its cluster, the server deletes {ORPHAN_SECONDS} seconds after the start every stream that the meta "
        )
        return text + "group does not assign to it. Name the directories of all nodes for a forecast.", "warn"

    @property
    def gone(self) -> bool:
        """Whether messages are missing before any start."""
        return any(stream.loss.gone for each in self.forecasts for stream in each.streams.values())

    @property
    def starts(self) -> bool:
        return self.forecasts[0].starts

    def counts(self) -> tuple[int, int]:
        """Returns the number of intact messages before any start, and of damaged and missing ones."""
        losses = [each.loss for each in self.forecasts[0].streams.values()]
        return sum(each.intact.count() for each in losses), sum(each.gone.count() for each in losses)

    @property
    def destroys(self) -> bool:
        return any(stream.loss.destroyed for each in self.forecasts for stream in each.streams.values())

    def next_step(self) -> NextStep:
        """Returns the one safe step."""
        if self.harmless and not self.gone:
            return NextStep("Nothing to repair: a server can be started")
        if self.source.archived:
            return safe_step(self.source, "Write what is intact in the archive to a new directory")
        text = "Do not start a server on this directory: copy it first, then write what is intact to a new one"
        if not self.destroys:
            text = "Copy the directory before a server is started, then write what is intact to a new one"
        return safe_step(self.source, text)


def versions_json(starts: list[dict[str, Any]], *, single: bool) -> dict[str, Any]:
    """Returns the starts by several versions as json; `single`: the user named the version."""
    head = {"schema": 1, "kind": "jetstream"}
    return {**head, **starts[0]} if single else {**head, "versions": starts}


class SurveyCache:
    """Surveys of streams, each made once for several forecasts and for the findings."""

    def __init__(self, progress: Progress, made: Iterable[StreamSurvey] = ()) -> None:
        self._progress = progress
        self._surveys = {str(each.directory.path): each for each in made}

    def __call__(self, stream: StoredStream) -> StreamSurvey:
        name = str(stream.path)
        if name not in self._surveys:
            self._surveys[name] = StreamSurvey(stream, self._progress)
        return self._surveys[name]


def forecast_starts(source: Source, version: str | None, survey: SurveyCache) -> StartForecasts:
    """Predicts the start of a version; else of the version that seems to have written the files, and of the newest."""
    rules = chosen_rules(source.streams, version)
    forecasts = [forecast_directory(source.streams, source.place, each, survey=survey) for each in rules]
    return StartForecasts(source, forecasts, version is not None)


def is_harmless(forecast: DirectoryForecast) -> bool:
    """Returns whether the server starts, serves every intact message, and destroys none."""
    return forecast.starts and all(
        each.fate is StreamFate.REMOVED or (each.loaded and not each.error and not each.stops and each.loss.harmless)
        for each in forecast.streams.values()
    )


def start_sentence(forecast: DirectoryForecast) -> str:
    """Returns the effects of a start, destroyed messages first."""
    server = f"nats-server {forecast.version}"
    destroyed = {name: each for name, each in forecast.streams.items() if each.loss.destroyed}
    deleted = [
        name for name, each in forecast.streams.items() if each.directory_deleted and each.fate is StreamFate.KEPT
    ]
    count = sum(each.loss.destroyed.count() for each in destroyed.values())
    if count:
        which = name_ranges({name: each.loss.destroyed for name, each in destroyed.items()})
        text = f"A start of {server} destroys {counted(count, 'intact message')} ({which})"
        if deleted:
            text += f"; it deletes the whole directory of {', '.join(map(escape, deleted[:_NAMED]))}"
        if forecast.orphans:
            named = some_of(list(map(escape, forecast.orphans)), _NAMED)
            text += f"; {ORPHAN_SECONDS} seconds after the start it deletes {named} as orphans"
    else:
        text = f"A start of {server} destroys no intact message"
    if not forecast.starts:
        how = "hangs, and fills its memory" if forecast.hangs else f"ends with exit code {forecast.exit_code}"
        return f"{text}; the server {how}, and no stream is available."
    parts = []
    for name, each in forecast.streams.items():
        if each.directory_deleted:
            continue
        if not each.loaded:
            parts.append(f"does not load {escape(name)}")
        elif each.error:
            parts.append(f"answers requests about {escape(name)} with an error")
        else:
            parts += loss_sentences(escape(name), each.loss)
            if each.stops:
                parts.append(f"stops the delivery of {escape(name)} at damage")
    gone = {name: each.loss.gone for name, each in forecast.streams.items() if each.loss.gone}
    before = ""
    if gone:
        number = sum(each.count() for each in gone.values())
        before = f" {counted(number, 'message', 'was/were')} missing before ({name_ranges(gone)})."
    if not parts:
        return text + ("." if count else " and serves all of them.") + before
    shown = "; it ".join(parts[:_NAMED])
    more = f"; and {counted(len(parts) - _NAMED, 'more effect')}" if len(parts) > _NAMED else ""
    return f"{text}; it {shown}{more}.{before}"


def expiry_sentence(forecast: DirectoryForecast) -> str:
    """Returns what limits of streams and lifetimes of messages remove at a start, without a full stop."""
    gone = {name: each.loss.expired for name, each in forecast.streams.items() if each.loss.expired}
    count = counted(sum(each.count() for each in gone.values()), "intact message")
    return (
        f"A start of nats-server {forecast.version} removes {count} that max_age, another limit of the stream or "
        f"their own lifetime no longer allows ({name_ranges(gone)})"
    )


def _file_remarks(forecast: DirectoryForecast) -> Iterator[ReportRemark]:
    changes = forecast.changes
    whole = [name for name in changes.removed if not any(name.startswith(f"{each}/") for each in changes.removed)]
    for name in whole:
        yield ReportRemark("directory", f"{escape(name)}: deleted with everything in it", "bad")
    for name, change in changes.files.items():
        if not any(name.startswith(f"{each}/") for each in whole):
            yield ReportRemark("file", f"{escape(name)}: {_change(name, change.before, change.after)}", "warn")
    for name, change in forecast.later.items():
        text = f"{escape(name)}: {_change(name, change.before, change.after)}, when a client reads there"
        yield ReportRemark("file", text, "warn")


def _effects(forecast: DirectoryForecast) -> str:
    """Returns the outcome without the words that differ between versions."""
    described = forecast.as_json()
    del described["server_version"], described["log"]
    changed = {name: each for name, each in described["files_changed"].items() if not name.endswith("index.db")}
    return repr({**described, "files_changed": changed})


def name_ranges(sets: Mapping[str, Ranges]) -> str:
    """Names the first streams with their sequences; names in it are safe to show."""
    named = [f"{escape(name)} {describe_ranges(ranges, 4)}" for name, ranges in sets.items()]
    more = f" and {counted(len(named) - _NAMED, 'more stream')}" if len(named) > _NAMED else ""
    return "; ".join(named[:_NAMED]) + more


def _row(name: str, outcome: StartedStream) -> tuple[Any, ...]:
    state = outcome.state
    problem = outcome.error or ("its directory is deleted" if outcome.directory_deleted else None)
    if not outcome.loaded or outcome.error:
        destroyed = describe_ranges(outcome.loss.destroyed, 4) if outcome.loss.destroyed else None
        return name, None, None, None, None, None, None, destroyed, None, problem
    return (
        name,
        state.first,
        state.last,
        state.messages,
        state.bytes,
        describe_ranges(outcome.readable, 4),
        None if outcome.delivered is None else describe_ranges(outcome.delivered, 4),
        describe_ranges(outcome.loss.destroyed, 4) if outcome.loss.destroyed else None,
        len(outcome.consumers),
        problem,
    )


def _change(name: str, before: int | None, after: int | None) -> str:
    if before is None:
        return f"created, {counted(after or 0, 'byte')}"
    if after is None:
        return f"removed, had {counted(before, 'byte')}"
    if after < before and name.endswith(".blk"):
        return f"cut from {before} to {after} bytes"
    return f"rewritten, {counted(before, 'byte')} before and {after} after"
