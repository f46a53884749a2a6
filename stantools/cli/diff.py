"""`stantools diff`: what two stores, or a store and a stream, do not have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options, or_selected
from stantools.cli.options import channel_option, reading_options, store_argument, verb, workers_option
from stantools.cli.output import show
from stantools.cli.verify import finding_rows, print_findings
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted, format_size

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.migration.proof.stream import Proof
    from stantools.nats.options import ConnectOptions
    from stantools.store.options import ReadOptions

#: What csv and ndjson have of a difference.
DIFFERENCE_COLUMNS = ("code", "severity", "file", "channel", "seq", "detail", "remedy")
_URL = re.compile(r"[a-z]+://", re.IGNORECASE)


@verb("diff", "table", "json", "ndjson", "csv")
@store_argument
@click.argument("other", metavar="OTHER")
@channel_option
@workers_option
@connection_options
@reading_options(unchecked=False)
def command(
    store: Path,
    other: str,
    channels: tuple[str, ...],
    workers: int,
    connecting: ConnectOptions,
    reading: ReadOptions,
) -> int:
    """Compare every message of STORE with OTHER, and everything else that both hold.

    OTHER is another store, or a JetStream stream: nats://HOST:PORT#STREAM, or #STREAM on the server that --server or
    --context name. Of two stores all intact messages are compared, and subscriptions, clients and server.dat; of a
    stream sequence, time, subject, headers and payload of each message, and its consumers. Which channel a stream is
    compared with is told by its metadata, its name or its subject, or by --channel; several channels in one stream are
    those that a migration numbered anew. Nothing is changed on either side.

    Exit code 0: no difference. 1: there are differences other than informational ones.
    """
    if _URL.match(other) or other.startswith("#"):
        findings, facts, text = _with_stream(store, other, channels, workers, connecting, reading)
    else:
        findings, facts, text = _with_store(store, Path(other), channels, workers, reading)
    show(
        lambda: {**facts, "findings": [each.as_json() for each in findings]},
        lambda: _print(findings, text),
        DIFFERENCE_COLUMNS,
        finding_rows(findings, DIFFERENCE_COLUMNS),
    )
    return ExitCode.FINDINGS if _serious(findings) else ExitCode.CLEAN


_Result = tuple[list["Finding"], dict[str, Any], str]


def _with_store(store: Path, other: Path, channels: tuple[str, ...], workers: int, reading: ReadOptions) -> _Result:
    from stantools.cli.opening import open_store
    from stantools.cli.progress import Progress
    from stantools.migration.proof.stores import Side, compare_stores

    opened = [open_store(path, reading) for path in (store, other)]
    sides = [Side(each, crc, reading.encryption_key) for each, crc in opened]
    names = {name for each, _ in opened for name in each.matching(channels)}
    if channels and not names:
        raise UsageError(
            f"no channel of either store matches {', '.join(map(console.escape, channels))}",
            "see: stantools info STORE",
        )
    # Everything is read twice: once to know what is intact, once to compare.
    with Progress("diff", lambda: 2 * sum(each.data_size(each.matching(channels)) for each, _ in opened)) as shown:
        found = compare_stores(*sides, patterns=channels, workers=workers, progress=shown.advance)
        shown.found(*found.findings)
    for path, damaged in zip((store, other), found.damaged, strict=True):
        if damaged:
            console.note(f"{console.escape(str(path))} is damaged; only what is intact was compared")
    facts = {"stream": None, "channels": found.channels, "messages": found.messages, "damaged": list(found.damaged)}
    return (
        found.findings,
        facts,
        (
            f"{counted(found.messages, 'message')} in {counted(found.channels, 'channel')} "
            f"{'is' if found.messages == 1 else 'are'} in both stores"
        ),
    )


def _with_stream(
    store: Path,
    other: str,
    channels: tuple[str, ...],
    workers: int,
    connecting: ConnectOptions,
    reading: ReadOptions,
) -> _Result:
    from dataclasses import replace

    from stantools.migration.tasks import run

    url, _, stream = other.partition("#")
    if not stream:
        raise UsageError(
            f"{console.escape(other)} names a server and no stream", "name the stream as well: nats://HOST:PORT#STREAM"
        )
    connecting = replace(connecting, servers=(url,)) if url else or_selected(connecting)
    if connecting.embedded:
        raise UsageError("a server that is started for this command has no stream", "name a server that runs")
    proof, names = run(_prove(store, stream, channels, workers, connecting, reading))
    facts = {
        "stream": stream,
        "channels": names,
        "messages": proof.messages,
        "bytes": proof.bytes,
        "seconds": round(proof.seconds, 3),
    }
    rate = f"{proof.messages / proof.seconds:,.0f} a second" if proof.seconds else "no time"
    text = (
        f"{counted(proof.messages, 'message')} ({format_size(proof.bytes)}) of channel "
        f"{', '.join(map(console.escape, names))} "
        f"{'was' if proof.messages == 1 else 'were'} compared with stream {console.escape(stream)}, {rate}"
    )
    return proof.findings, facts, text


async def _prove(
    store: Path,
    stream: str,
    channels: tuple[str, ...],
    workers: int,
    connecting: ConnectOptions,
    reading: ReadOptions,
) -> tuple[Proof, list[str]]:
    import asyncio

    from stantools.cli.opening import channel_names, open_store
    from stantools.cli.progress import Progress
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.journal import Stage
    from stantools.migration.proof.match import channels_for, match_stream, stream_info, taking_of
    from stantools.migration.source import open_source
    from stantools.nats.connection import connect
    from stantools.nats.jetstream import JetStream

    opened, crc = open_store(store, reading)
    async with connect(connecting) as connection:
        js = JetStream(connection)
        info = await stream_info(js, stream)
        names = channel_names(opened, channels) if channels else channels_for(info, opened.channel_names, store)
        taking = taking_of(names, key=reading.encryption_key, workers=workers)
        with Progress("read the store", lambda: opened.data_size(taking.patterns)) as shown:
            # In a thread, so that the connection is kept alive meanwhile.
            source = await asyncio.to_thread(open_source, opened, crc, taking, progress=shown.advance)
        match = await match_stream(js, info, source, names)
        with (
            StreamsProgress("diff", match.source.count) as watch,
            watch.stage(stream, Stage.COMPARE, match.source.count) as progress,
        ):
            proof = await match.prove(js, progress)
    return proof, names


def _serious(findings: list[Finding]) -> bool:
    return any(each.severity.value != "info" for each in findings)


def _print(findings: list[Finding], text: str) -> None:
    print_findings(findings)
    if _serious(findings):
        click.echo(f"{console.paint('different', 'red', err=False)}: {counted(len(findings), 'finding')}; {text}")
    else:
        click.echo(f"{console.paint('no difference', 'green', err=False)}: {text}")
