"""Common parts of `doctor`, `forecast` and `report`: options of the server, examination of a store, texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.output import table_text
from stantools.errors import StantoolsError, StoreChangedError, UsageError
from stantools.escaping import shell_word
from stantools.notation import describe_ranges
from stantools.options import CLUSTER_ID, SIZE, WORKERS, option

if TYPE_CHECKING:
    from stantools.inspection.advice import Advice, Diagnosis
    from stantools.inspection.forecast import Forecast, OtherUser, ServerOptions
    from stantools.inspection.node_diagnosis import NodeDiagnosis
    from stantools.inspection.start_verdict import StartVerdict
    from stantools.inspection.survey import ChannelSurvey
    from stantools.sources.source import Source
    from stantools.store.directory import Datastore
    from stantools.store.limits import StoreLimits
    from stantools.store.ranges import Ranges

_LOSSES = 8
_CHANNELS = 20
_COLORS = {"healthy": "green", "flawed": "yellow", "damaged": "red", "in danger": "red"}


# As `inspection.forecast.SERVER_VERSIONS`; that module is too big to import for --help.
_VERSIONS = ("0.23.2", "0.25.6")
# As `inspection.stream_forecast.versions.SERVER_RULES`
_STREAM_VERSIONS = ("2.9", "2.10", "2.11", "2.12", "2.14", "2.15")


@dataclass(frozen=True)
class ServerFlags:
    """Options of the server whose behaviour is predicted; the default is the server's own."""

    server_version: str | None = option(
        f"The server's version; default: {_VERSIONS[0]}; for a JetStream directory the one that seems to have written "
        "it, and the newest.",
        choices=_VERSIONS + _STREAM_VERSIONS,
    )
    cluster_id: str | None = CLUSTER_ID.field(help="The server's -cluster_id; default: the store's own.")
    read_buffer: int | None = SIZE.field(help="The server's -file_read_buffer_size; 0 is off.")
    server_user: str | None = option("Name or number of the user that runs the server; default: you.", metavar="USER")
    workers: int = WORKERS.field()
    limits: StoreLimits | None = None

    def options(self, store: Datastore) -> ServerOptions:
        """Returns the server's options for a store.

        The cluster id defaults to the store's own: a start with another one fails anyway.
        """
        from stantools.inspection.forecast.server_options import own_server

        version = self.server_version or _VERSIONS[0]
        if version in _STREAM_VERSIONS:
            raise UsageError(
                f"{version} is a version of nats-server, which does not open stores of NATS Streaming",
                f"choose {' or '.join(_VERSIONS)}",
            )
        options = own_server(store, version=version, workers=self.workers)
        if self.limits:
            options = replace(options, limits=self.limits)
        if self.read_buffer is not None:
            options = replace(options, read_buffer_size=self.read_buffer)
        if self.cluster_id:
            options = replace(options, cluster_id=self.cluster_id)
        return replace(options, access=_user(self.server_user)) if self.server_user else options


def _user(name: str) -> OtherUser:
    import grp
    import pwd

    from stantools.inspection.forecast import OtherUser

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError as problem:
        if name.isdecimal():
            return OtherUser(int(name))
        raise UsageError(f"there is no user {console.escape(name)}", "give the user's number") from problem
    groups = {each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem}
    return OtherUser(entry.pw_uid, frozenset({entry.pw_gid, *groups}))


def examine(
    source: Source,
    server: ServerFlags,
    on_survey: Callable[[ChannelSurvey], object] | None = None,
    *,
    needs_start: bool = False,
) -> Diagnosis:
    """Reads everything, predicts starts, and judges; shows progress.

    Args:
        on_survey: Called with the scan of each channel, which is released afterwards.
        needs_start: Raise an error if a start cannot be predicted.
    """
    from stantools.cli.opening import signs_of_use
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.advice import diagnose
    from stantools.inspection.ciphertext import find_ciphertext
    from stantools.inspection.forecast import forecast_versions
    from stantools.inspection.forecast.sound_slices import SoundSlice, sound_slices
    from stantools.inspection.source_queries import verify_source

    opened, uses = source.store(), signs_of_use(source)
    sound: list[SoundSlice] = []

    def take(survey: ChannelSurvey) -> None:
        sound.extend(sound_slices(survey))
        if on_survey:
            on_survey(survey)

    with ByteProgress("verify", source.data_size) as shown:
        found = verify_source(
            source,
            workers=server.workers,
            progress=shown.advance,
            on_finding=shown.found,
            on_survey=take,
        )
    options = server.options(opened)
    starts: list[tuple[Forecast, Forecast]] = []
    with ByteProgress("forecast", source.data_size) as shown:
        try:
            starts = forecast_versions(opened, options, progress=shown.advance, sound=sound)
        except StoreChangedError:
            raise
        except StantoolsError as problem:
            if needs_start:
                raise
            # The rest is useful without it.
            console.warning(f"the server's start cannot be predicted: {problem.message}", problem.remedy)
    return replace(diagnose(source.path, found, starts, uses, place=opened.path), encryption=find_ciphertext(opened))


def examine_node(source: Source, server: ServerFlags) -> NodeDiagnosis:
    """Reads all of a clustered node, and judges; shows progress."""
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.node_diagnosis import diagnose_node
    from stantools.inspection.source_queries import source_overview, verify_source

    with ByteProgress("verify") as shown:
        verified = verify_source(source, workers=server.workers, on_finding=shown.found)
    view, report = source_overview(source)
    assert report
    return diagnose_node(source.path, report, view, verified)


def print_verdict(diagnosis: Diagnosis | NodeDiagnosis) -> None:
    """Prints the verdict in one line, and encryption in a second one."""
    from stantools.inspection.advice import Diagnosis

    state = console.paint(diagnosis.state.value, _COLORS[diagnosis.state.value], err=False, bold=True)
    text = f"{console.escape(str(diagnosis.path))}: {state}: {console.escape_line(diagnosis.verdict)}"
    click.echo(console.wrapped(text, 2))
    if isinstance(diagnosis, Diagnosis) and (encryption := diagnosis.encryption.sentence):
        click.echo(console.wrapped(console.filled(f"encryption: {encryption}"), 2))


def print_starts(versions: Sequence[tuple[StartVerdict, StartVerdict]]) -> None:
    """Prints the outcome of starts and the data they destroy."""
    (normal, truncating), *others = versions
    said = [("", normal)]
    one, two = normal.forecast, truncating.forecast
    if (two.starts, two.destroys) != (one.starts, one.destroys):
        said.append(("With -file_truncate_bad_eof ", truncating))
    said += [(f"As version {each.forecast.server_version} ", each) for each, _ in others]
    for label, start in said:
        color = "green" if start.harmless else "yellow" if start.delivers else "red"
        text = f"{label}the server would {start.outlook()}" if label else start.sentence()
        click.echo(console.paint(console.wrapped(text, 2), color, err=False))
        losses = start.forecast.destroys
        for loss in losses[:_LOSSES]:
            click.echo(console.wrapped(f"  destroys  {loss.sentence()}", 12))
        console.left_out(len(losses) - _LOSSES, head="  destroys  ", tail=": see -o json")


def print_outcomes(diagnosis: Diagnosis) -> None:
    """Prints the outcome for messages: the totals, then the channels with problems."""
    click.echo(console.wrapped(f"messages: {diagnosis.totals.sentence('a start')}", 2))
    rows = [
        (
            each.name,
            each.count,
            describe_ranges(each.readable or (), 4) if each.readable is not None else None,
            _described(each.recoverable, *each.older),
            _described(each.archived),
            _described(each.missing),
            ", ".join(unknown.sequences for unknown in each.unknown) or None,
        )
        for each in diagnosis.outcomes.values()
        if each.recoverable or each.older or each.archived or each.missing or each.unknown
    ]
    if rows:
        headers = ("channel", "intact", "readable now", "recoverable", "archived", "missing before", "unknown")
        click.echo(table_text(headers, rows[:_CHANNELS], right=("intact",), indent=2), nl=False)
    console.left_out(len(rows) - _CHANNELS, "channel", head="  ", tail=": see -o json")


def _described(*sets: Ranges) -> str | None:
    return "; ".join(describe_ranges(each, 4) for each in sets if each) or None


def print_advice(advice: Advice) -> None:
    """Prints the next step with a pasteable command."""
    click.echo(console.wrapped(f"next: {console.escape_line(advice.text)}", 2))
    if advice.command:
        click.echo(f"  {' '.join(map(shell_word, advice.command))}")
