"""Comparison of a stream with the channel of the store that it was made from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from stantools.errors import StantoolsError
from stantools.inspection.findings import Finding
from stantools.migration.proof.match import channels_of, match_stream, source_options_of, stream_info
from stantools.migration.proof.stream_proof import ExpectedStream, Proof
from stantools.migration.source import open_source
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.notation import format_size
from tui.cells import SYMBOLS, Cell, bar, counted, name_text, number
from tui.jobs import Job, JobState
from tui.live.facts import LiveStream
from tui.live.sources import LiveSources
from tui.live.streams_source import StreamsSource, run_async
from tui.rows import ListRows, TableColumn
from tui.screens.base import ViewScreen
from tui.screens.liveview import LiveView
from tui.store_session import StoreSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable


def compare(view: LiveView, watching: LiveSources, stream: LiveStream) -> None:
    """Compares a stream with its channel; asks the user for the channel if it is not clear."""
    session = view._session
    if not isinstance(session, StoreSession):
        problem = StantoolsError(
            "there is no store to compare the stream with", "open one with the server: stantools tui STORE --server URL"
        )
        view.browser.fail(problem)
        return
    streams = watching.streams
    assert streams is not None

    def begin(channels: Sequence[str] | None) -> None:
        if channels:
            view.app.push_screen(LiveCompareScreen(session, view.place, streams, stream.name, channels))

    try:
        candidates = channels_of(stream.info, list(session.channels))
    except (KeyError, TypeError, ValueError):  # the configuration is not that of a server
        candidates = []
    if len(candidates) == 1:
        begin(candidates)
    else:
        view.app.push_screen(ChannelChoice(stream.name, candidates, list(session.channels)), begin)


def _choice(names: Sequence[str]) -> Cell:
    return name_text(names[0]) if len(names) == 1 else (f"all {len(names)} of them, renumbered", "accent")


_CHOICE: TableColumn[Sequence[str]] = TableColumn("channel", 20, _choice, grows=True)
_DIFFERENCES: Sequence[TableColumn[Finding]] = (
    TableColumn(" ", 1, lambda finding: SYMBOLS[finding.severity.value]),
    TableColumn("difference", 20, lambda finding: finding.code),
    TableColumn("", 20, lambda finding: finding.detail, grows=True),
)


class ChannelChoice(ModalScreen[Sequence[str] | None]):
    """Asks for the channels that went into a stream.

    `candidates` are the likely ones, `names` all channels of the store.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close", id="live.close")]

    def __init__(self, stream: str, candidates: Sequence[str], names: Sequence[str]) -> None:
        super().__init__()
        self._stream = stream
        self._candidates = candidates
        self._choices: list[Sequence[str]] = []
        self._all: list[Sequence[str]] = [[name] for name in candidates or names]
        if len(candidates) > 1:
            self._all.insert(0, list(candidates))

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield TextLine(id="question")
            yield Input(placeholder="part of a channel's name", compact=True)
            yield RowTable(ListRows([_CHOICE]))

    def on_mount(self) -> None:
        why = "its subjects are those of several channels" if self._candidates else "its configuration does not tell"
        self.query_one("#question", TextLine).show(
            f"Which channel is stream {name_text(self._stream)} made of? ({why})"
        )
        self._fill("")
        self.query_one(RowTable).focus()

    def _fill(self, wanted: str) -> None:
        wanted = wanted.casefold()
        self._choices = [each for each in self._all if any(wanted in name.casefold() for name in each)]
        self.query_one(RowTable).source = ListRows([_CHOICE], self._choices)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.query_one(RowTable).focus()

    @on(RowTable.Selected)
    def _selected(self, event: RowTable.Selected) -> None:
        self.dismiss(self._choices[event.row])


@dataclass(frozen=True)
class LiveComparison:
    """The expected contents of the stream, and the differences. A comparison changes neither side."""

    channels: Sequence[str]
    expected: ExpectedStream
    proof: Proof

    @property
    def equal(self) -> bool:
        return not any(each.severity.value != "info" for each in self.proof.findings)


class LiveCompareScreen(ViewScreen):
    """A comparison: its progress, then the differences. `channels` went into the stream."""

    NAME = "live › compare"
    TAB = View.LIVE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Messages", id="live.open"),
        Binding("c", "cancel", "Cancel", id="live.cancel"),
        Binding("equals_sign", "again", "Again", key_display="=", id="live.compare"),
    ]

    def __init__(
        self, session: StoreSession, place: ViewTarget, streams: StreamsSource, stream: str, channels: Sequence[str]
    ) -> None:
        super().__init__(session, replace(place, channel=None))
        self._store = session.store
        self._streams = streams
        self._stream = stream
        self._channels = channels
        self.findings: Sequence[Finding] = ()
        self.job: Job[LiveComparison] | None = None

    @property
    def channel(self) -> str | None:
        return self._channels[0] if len(self._channels) == 1 else None

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="live-head")
        yield RowTable(ListRows(()))
        yield TextLine(id="live-finding")

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()
        self.action_again()

    def action_again(self) -> None:
        if self.job is not None and self.job.running:
            return
        session = self.session
        self._show_findings(())
        self.job = Job("compare", lambda job: run_async(job, self._compare(job)))
        self.watch_job(self.job, self._finished, self._write)
        words = [word for name in self._channels for word in ("--channel", name)]
        url = self._streams.url if self._streams.answered is not None else ""
        self.note("stantools", "diff", str(session.path), f"{url}#{self._stream}", *words)
        self._write()
        self.refresh_bindings()

    async def _compare(self, job: Job[LiveComparison]) -> LiveComparison:
        """Does the same as `stantools diff STORE URL#STREAM`."""
        channels = self._channels
        source_options = source_options_of(channels, self.session.workers)
        async with connect(self._streams.connect_options, name="stantools tui") as connection:
            js = JetStream(connection)
            info = await stream_info(js, self._stream)
            job.begin_phase("reading the store", self._store.data_size(source_options.patterns))
            # In a thread, so that the loop keeps the connection alive.
            source = await asyncio.to_thread(open_source, self._store, source_options, progress=job.advance)
            expected = await match_stream(js, info, source, channels)
            job.begin_phase("reading the stream", expected.source.count)
            proof = await expected.prove(js, progress=job.advance)
        return LiveComparison(channels, expected, proof)

    def action_cancel(self) -> None:
        if self.job is not None and self.job.running:
            self.job.cancel()
            self._write()

    def _finished(self) -> None:
        job = self.job
        if job is not None and job.state is JobState.DONE:
            self._show_findings(job.result.proof.findings)
        self._write()
        self.refresh_bindings()

    def _show_findings(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        table = self.query_one(RowTable)
        table.source = ListRows(_DIFFERENCES if findings else (), findings)
        table.cursor = 0
        self._show_whole(0)

    @on(RowTable.Highlighted)
    def _highlighted(self, event: RowTable.Highlighted) -> None:
        self._show_whole(event.row)

    def _show_whole(self, row: int) -> None:
        line = self.query_one("#live-finding", TextLine)
        line.display = bool(self.findings)
        if row < len(self.findings):
            each = self.findings[row]
            remedy: list[Sequence[Cell]] = [[(each.remedy, "dim")]] if each.remedy else []
            line.show_lines([[each.detail], *remedy])

    def _write(self) -> None:
        self.query_one("#live-head", TextLine).show_lines(list(self._lines()))

    def _lines(self) -> Iterable[Sequence[Cell]]:
        names = ", ".join(map(name_text, self._channels[:5])) + (" …" if len(self._channels) > 5 else "")
        what = "channel" if len(self._channels) == 1 else "channels"
        yield [("stream ", "dim"), (name_text(self._stream), "strong"), (f"  {what} ", "dim"), (names, "strong")]
        job = self.job
        if job is None:
            return
        if job.running:
            share = job.share
            text = "cancelling" if job.cancelling else job.phase or "connecting"
            shown = f"{share:>4.0%} {bar(share, 30):<30}" if share is not None else ""
            yield [(f"{text} ", "accent"), (shown, "accent")]
            yield [("The stream is read through a temporary consumer; nothing else is created there.", "dim")]
        elif job.state is JobState.CANCELLED:
            yield [("cancelled", "warn"), ("  = compares again", "dim")]
        elif job.problem is not None:
            yield [("✗ ", "bad"), (job.problem.message, "bad")]
            yield [f"  {job.problem.remedy}", ("  = compares again", "dim")]
        else:
            yield from _verdict(job.result)

    @on(RowTable.Selected)
    def action_open(self) -> None:
        row = self.query_one(RowTable).cursor
        if row >= len(self.findings):
            return
        finding = self.findings[row]
        if finding.channel in self.session.channels:
            place = ViewTarget(channel=finding.channel, seq=finding.seq)
            self.browser.open_view(View.MESSAGES, place, above=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        running = self.job is not None and self.job.running
        if action in ("cancel", "again"):
            return running == (action == "cancel")
        return bool(self.findings) if action == "open" else super().check_action(action, parameters)


def _verdict(result: LiveComparison) -> Iterable[Sequence[Cell]]:
    proof, source = result.proof, result.expected.source
    verdict: Cell = ("✓ equal", "good") if result.equal else ("✗ different", "bad")
    same = f": {counted(proof.messages, 'message')} ({format_size(proof.bytes)}) of the stream compared"
    yield [verdict, same, (f"  in {proof.seconds:.1f} s", "dim")]
    missing = max(source.count - proof.messages, 0)
    cells: list[Cell] = [f"the store has {number(source.count)}, sequences {source.first} to {source.last}"]
    if missing:
        cells.append((f"; {number(missing)} of them are missing in the stream", "bad"))
    yield cells
    consumers = result.expected.consumers
    if consumers:
        wrong = {each.code for each in proof.findings if each.code.startswith("consumer-")}
        names = ", ".join(name_text(plan.name) for plan, _ in consumers[:5]) + (" …" if len(consumers) > 5 else "")
        text = f"{counted(len(consumers), 'durable')}: {names}"
        yield [text, ("  ✗ differ from the store" if wrong else "  ✓ each at its position", "bad" if wrong else "good")]
    elif not any(each.code.startswith("consumer-") for each in proof.findings):
        yield [("the store has no durables here", "dim")]
