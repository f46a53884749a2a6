"""Forecasts of a start of a cluster's nodes together, and their report: what no node has any more comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportTable, columns
from stantools.inspection.stream_advice import safe_step
from stantools.inspection.stream_forecast.cluster_start import ORPHAN_SECONDS, ClusterStart, StreamFate, cluster_start
from stantools.inspection.stream_forecast.directory_forecast import DirectoryForecast, forecast_directory
from stantools.inspection.stream_forecast.start_report import (
    StartForecasts,
    SurveyCache,
    forecast_starts,
    is_harmless,
    name_ranges,
    start_sentence,
    versions_json,
)
from stantools.inspection.stream_forecast.versions import ServerRules, chosen_rules
from stantools.notation import counted, describe_ranges, some_of
from stantools.sources.source import Source
from stantools.store.ranges import Ranges

_COLUMNS = columns(
    *("node", "stream", "first", "last", "messages", "destroyed", "problem"),
    numbers=("first", "last", "messages"),
    roles={"destroyed": "bad"},
    keys=("node", "stream", "problem"),
)
_NAMED = 4
_FATES = {
    StreamFate.ORPHAN: "deleted as an orphan",
    StreamFate.REMOVED: "removed: the cluster deleted it while the node was down",
}


@dataclass
class NodesStart:
    """A start of all given nodes with one version."""

    version: str
    nodes: dict[str, DirectoryForecast]

    @property
    def destroyed(self) -> dict[str, Ranges]:
        """The messages of each stream that no node has any more, although some had them intact."""
        before: dict[str, Ranges] = {}
        left: dict[str, Ranges] = {}
        for forecast in self.nodes.values():
            for name, each in forecast.streams.items():
                before[name] = before.get(name, Ranges()) | each.loss.intact
                left[name] = left.get(name, Ranges()) | (each.loss.intact - each.loss.destroyed)
        return {name: gone for name, intact in before.items() if (gone := intact - left[name])}

    @property
    def orphans(self) -> dict[str, list[str]]:
        """The nodes that delete a stream as an orphan, by stream."""
        found: dict[str, list[str]] = {}
        for node, forecast in self.nodes.items():
            for name in forecast.orphans:
                found.setdefault(name, []).append(node)
        return found

    @property
    def harmless(self) -> bool:
        return all(map(is_harmless, self.nodes.values()))

    def as_json(self) -> dict[str, Any]:
        nodes = {}
        for node, forecast in self.nodes.items():
            nodes[node] = forecast.as_json()
            del nodes[node]["server_version"]
        return {
            "server_version": self.version,
            "nodes": nodes,
            "destroyed": {name: each.as_json() for name, each in self.destroyed.items()},
        }

    def sentence(self) -> str:
        gone = self.destroyed
        text = f"If these nodes are started together, nats-server {self.version}"
        if gone:
            count = counted(sum(each.count() for each in gone.values()), "intact message")
            text += f" destroys {count} that no node has then ({name_ranges(gone)})"
        else:
            text += " destroys no message that is on one node only"
        if orphans := self.orphans:
            named = [f"{escape(name)} on {some_of(nodes, _NAMED)}" for name, nodes in orphans.items()]
            text += f"; {ORPHAN_SECONDS} seconds after the start it deletes as orphans {'; '.join(named[:_NAMED])}"
            text += f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            text += ": the meta group does not assign them"
        return text + "."


@dataclass
class NodesForecasts:
    source: Source
    forecasts: list[NodesStart]
    single: bool

    @property
    def harmless(self) -> bool:
        return all(each.harmless for each in self.forecasts)

    @property
    def destroys(self) -> bool:
        return any(each.destroyed for each in self.forecasts)

    @property
    def starts(self) -> bool:
        return all(each.starts for each in self.forecasts[0].nodes.values())

    def counts(self) -> tuple[int, int]:
        """Returns the number of messages that are intact on some node, and of those that are on none."""
        intact: dict[str, Ranges] = {}
        gone: dict[str, Ranges] = {}
        for forecast in self.forecasts[0].nodes.values():
            for name, each in forecast.streams.items():
                intact[name] = intact.get(name, Ranges()) | each.loss.intact
                gone[name] = gone.get(name, Ranges()) | each.loss.gone
        return (
            sum(each.count() for each in intact.values()),
            sum((each - intact[name]).count() for name, each in gone.items()),
        )

    def sentence(self) -> str:
        return self.forecasts[0].sentence()

    def as_json(self) -> dict[str, Any]:
        return versions_json([each.as_json() for each in self.forecasts], single=self.single)

    def report(self) -> Report:
        report = Report(code=ExitCode.CLEAN if self.harmless else ExitCode.FINDINGS, document=self.as_json)
        for start in self.forecasts:
            report.lead.append((start.sentence(), "good" if start.harmless else "bad"))
        first = self.forecasts[0]
        report.list_remarks(
            (
                ReportRemark(escape(node), start_sentence(each), "good" if is_harmless(each) else "warn")
                for node, each in first.nodes.items()
            ),
            "node",
        )
        report.tables.append(ReportTable(_COLUMNS, list(_rows(first))))
        report.next.append(self.next_step())
        return report

    def next_step(self) -> NextStep:
        if self.harmless:
            return NextStep("Nothing to repair: the nodes can be started")
        text = "Copy the directories of all nodes before any is started, then unite what is intact on them in a new one"
        if self.source.archived:
            text = "Unite what is intact on the nodes in the archive in a new directory"
        return safe_step(self.source, text)


def _rows(start: NodesStart) -> Iterator[tuple[Any, ...]]:
    for node, forecast in start.nodes.items():
        for name, each in forecast.streams.items():
            gone = describe_ranges(each.loss.destroyed, 4) if each.loss.destroyed else None
            problem = _FATES.get(each.fate) or each.error or None
            state = each.state if each.loaded and not each.error else None
            numbers = (state.first, state.last, state.messages) if state else (None, None, None)
            yield node, name, *numbers, gone, problem


def forecast_directories(
    source: Source, version: str | None, survey: SurveyCache, empty: Sequence[str] = ()
) -> StartForecasts | NodesForecasts:
    """Predicts a start of a JetStream directory, or of all nodes of a cluster if there are several."""
    if empty or len(node_names(source)) > 1:
        return forecast_nodes(source, version, survey, empty)
    return forecast_starts(source, version, survey)


def forecast_nodes(
    source: Source, version: str | None, survey: SurveyCache, empty: Sequence[str] = ()
) -> NodesForecasts:
    """Predicts a start of all nodes of a source, and of `empty` ones that have no directory yet."""
    starts = []
    for rules in chosen_rules(source.streams, version):
        cluster = cluster_start(source.streams, source.raft_groups, rules, empty)
        nodes = {each.node: _node(source, each.node, cluster, rules, survey) for each in cluster.metas}
        starts.append(NodesStart(rules.version, nodes))
    return NodesForecasts(source, starts, version is not None)


def _node(
    source: Source, node: str, cluster: ClusterStart, rules: ServerRules, survey: SurveyCache
) -> DirectoryForecast:
    streams = [each for each in source.streams if each.node == node]
    if not cluster.starts(node):
        return DirectoryForecast(rules.version, starts=False, exit_code=1, log=cluster.refusal(node))
    return forecast_directory(streams, source.node_place(node), rules, cluster=cluster, survey=survey)


def node_names(source: Source) -> list[str]:
    return list(dict.fromkeys([*(each.node for each in source.raft_groups), *(each.node for each in source.streams)]))
