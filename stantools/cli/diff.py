"""`stantools diff`: what two stores, or a store and a stream, do not have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options, or_selected
from stantools.cli.options import (
    channel_option,
    common_options,
    output_option,
    progress_option,
    reading_options,
    store_argument,
    workers_option,
)
from stantools.cli.output import print_json, rows_as
from stantools.cli.values import format_size
from stantools.cli.verbs import verb
from stantools.cli.verify import print_findings
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.inspection.findings import Finding
    from stantools.migration.proof.stream import Proof
    from stantools.nats.options import ConnectOptions
    from stantools.store.options import ReadOptions

_COLUMNS = ("code", "severity", "file", "channel", "seq", "detail", "remedy")
_URL = re.compile(r"[a-z]+://", re.IGNORECASE)


@verb("diff")
@store_argument
@click.argument("other", metavar="OTHER")
@channel_option
@workers_option
@connection_options
@reading_options(unchecked=False)
@output_option("table", "json", "ndjson", "csv")
@progress_option
@common_options
def command(
    store: Path,
    other: str,
    channels: tuple[str, ...],
    workers: int,
    connecting: ConnectOptions,
    reading: ReadOptions,
    output: str,
    progress: str,
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
        findings, facts, text = _with_stream(store, other, channels, workers, connecting, reading, progress)
    else:
        findings, facts, text = _with_store(store, Path(other), channels, workers, reading, progress)
    if output == "json":
        print_json({**facts, "findings": [each.as_json() for each in findings]})
    elif output == "table":
        print_findings(findings)
        click.echo(_conclusion(findings, text))
    else:
        rows_as(output, _COLUMNS, ([each.as_json()[name] for name in _COLUMNS] for each in findings))
    return ExitCode.FINDINGS if _serious(findings) else ExitCode.CLEAN


_Result = tuple[list["Finding"], dict[str, Any], str]


def _with_store(
    store: Path, other: Path, channels: tuple[str, ...], workers: int, reading: ReadOptions, progress: str
) -> _Result:
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
    with Progress(progress, "diff") as shown:
        if shown.active:
            # Everything is read twice: once to know what is intact, once to compare.
            shown.total = 2 * sum(each.data_size(each.matching(channels)) for each, _ in opened)
        found = compare_stores(*sides, patterns=channels, workers=workers, progress=shown.advance)
        shown.found(len(found.findings))
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
    progress: str,
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
    proof, names = run(_prove(store, stream, channels, workers, connecting, reading, progress))
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
    progress: str,
) -> tuple[Proof, list[str]]:
    from stantools.cli.opening import channel_names, open_store
    from stantools.cli.progress import Progress
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.proof.match import (
        channels_for,
        match_stream,
        patterns_for,
        prove_match,
        read_source,
        stream_info,
    )
    from stantools.nats.connection import connect
    from stantools.nats.jetstream import JetStream

    opened, crc = open_store(store, reading)
    async with connect(connecting) as connection:
        js = JetStream(connection)
        info = await stream_info(js, stream)
        names = channel_names(opened, channels) if channels else channels_for(info, opened.channel_names, store)
        with Progress(progress, "read the store") as shown:
            if shown.active:
                shown.total = opened.data_size(patterns_for(names))
            key = reading.encryption_key
            source = await read_source(opened, crc, names, key=key, workers=workers, progress=shown.advance)
        match = await match_stream(js, info, source, names)
        with StreamsProgress(progress, "diff", match.source.count) as watch:
            watch.begin(stream, "compare", match.source.count)
            proof = await prove_match(js, stream, match, lambda count: watch.advance(stream, count))
    return proof, names


def _serious(findings: list[Finding]) -> bool:
    return any(each.severity.value != "info" for each in findings)


def _conclusion(findings: list[Finding], text: str) -> str:
    if not _serious(findings):
        return f"{console.paint('no difference', 'green', err=False)}: {text}"
    return f"{console.paint('different', 'red', err=False)}: {counted(len(findings), 'finding')}; {text}"
