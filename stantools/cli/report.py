"""`stantools report`: a page about a store; and writing of pages for other verbs."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.click_options import options_of, reading_options, store_argument, verb
from stantools.cli.doctor import start_options
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.errors import StantoolsError, StoreUnwritableError, UsageError
from stantools.install_hints import install_command
from stantools.options import Option, option

if TYPE_CHECKING:
    from stantools.inspection.start_options import StartOptions
    from stantools.sources.source import Source
    from stantools.store.read_options import ReadOptions

OVERWRITE = Option(help="Replace an existing page.", default=False)


@dataclass(frozen=True)
class ReportPage:
    html: Path = option("Write the page into this file.", kind=Path, metavar="FILE", required=True)
    overwrite: bool = OVERWRITE.field()


@verb("report", "table", "json", tables=False)
@store_argument
@options_of(ReportPage, "page")
@start_options
@reading_options()
def command(store: Path, page: ReportPage, server: StartOptions, read_options: ReadOptions) -> int:
    """Write an HTML page about STORE, for a ticket or a browser.

    It combines `stantools doctor`, `verify`, `forecast` and `subs`: the verdict, the one next command, the effects of a
    server's start, every finding, and for each channel its intact, damaged and missing sequences, a timeline of its
    messages, a map of the bytes of each slice, and its subscriptions. It is one self-contained file with light and dark
    colors. It contains names of channels and clients, but no payloads. STORE is not changed.

    Of a JetStream directory it has the streams with their blocks, messages and consumers; of a SQL store the intact
    rows are drawn as slices.

    Exit code 0: no problem, and a start is harmless. 1: a problem, or a harmful start. The page is written in both
    cases.
    """
    from stantools.cli.opening import open_source
    from stantools.inspection.diagnosis_report import verdict_report
    from stantools.inspection.source_queries import diagnose_source, source_overview
    from stantools.inspection.survey_jobs import survey_channels
    from stantools.sources.source import Capability

    check_page(page.html, overwrite=page.overwrite)
    source = open_source(store, read_options, Capability.PAGE)
    if source.holds_streams:
        return _of_streams(source, page)
    opened = source.store()

    from stantools.pages.storepage import Pictures, store_page

    pictures = Pictures(opened.crc)
    diagnosis = diagnose_source(source, server, ByteProgress, pictures.add)
    described, _ = source_overview(source, workers=server.workers)
    if source.sql:  # the rows were judged; the intact ones are drawn
        for survey in survey_channels(opened, opened.channel_names, workers=server.workers):
            pictures.add(survey)
    text = store_page(diagnosis, described, pictures, time.time_ns())
    write_page(page.html, text)
    return show(verdict_report(diagnosis, str(page.html)))


def _of_streams(source: Source, page: ReportPage) -> int:
    """Writes the page about a JetStream directory; returns the exit code."""
    from stantools.inspection.report import Report
    from stantools.inspection.stream_forecast.nodes_report import forecast_directories
    from stantools.inspection.stream_forecast.start_report import SurveyCache
    from stantools.inspection.stream_forecast.streams_doctor import doctor_report
    from stantools.pages.streampage import DirectoryFacts, streams_page
    from stantools.store.locks import find_uses

    facts = DirectoryFacts(source)
    with ByteProgress("verify", source.data_size()) as shown:
        facts.read(shown.advance)
    with ByteProgress("forecast") as shown:
        starts = forecast_directories(source, None, SurveyCache(shown.advance, facts.surveys))
    report = doctor_report(starts, facts.verdict, [] if source.archived else find_uses(source.place, quiet=0))
    write_page(page.html, streams_page(facts, report, time.time_ns()))
    document = report.document
    short = Report(code=report.code, lead=report.lead[:1], facts=report.facts)
    short.document = lambda: {**document(), "page": str(page.html)}
    return show(short)


def check_page(path: Path, *, overwrite: bool) -> None:
    """Checks before the work that a page can be made and written; raises `StantoolsError` otherwise."""
    if not importlib.util.find_spec("jinja2"):
        raise StantoolsError("the page needs jinja2", install_command("jinja2"))
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; expected the name of a file", "name a file in it")
    if path.exists() and not overwrite:
        raise StoreUnwritableError(f"{path}: already exists", "--overwrite replaces it")
    if not path.absolute().parent.is_dir():
        raise StoreUnwritableError(f"{path.absolute().parent}: no such directory", "make it first")


def write_page(path: Path, text: str) -> None:
    from stantools.store.durable import replace_file

    replace_file(path, text.encode("utf-8", "backslashreplace"))
    console.note(f"wrote {console.escape(str(path))}")
