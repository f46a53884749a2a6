"""A stream beside the channel that it came from: the comparison of `stantools diff STORE URL#STREAM`, as a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stantools.format.crc import Crc
from stantools.migration.proof.match import Match, match_stream, patterns_for, prove_match, read_source, stream_info
from stantools.migration.proof.stream import Proof
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.nats.options import ConnectOptions
from stantools.store.directory import Datastore
from tui.jobs import Job
from tui.live.background import run_async


@dataclass(frozen=True)
class Compared:
    """What a comparison came to.

    Attributes:
        stream: The stream.
        channels: What it was compared with.
        match: What it should be.
        proof: What differs.
    """

    stream: str
    channels: Sequence[str]
    match: Match
    proof: Proof

    @property
    def equal(self) -> bool:
        """Nothing differs but what is only worth knowing."""
        return not any(each.severity.value != "info" for each in self.proof.findings)


def compare_job(
    connecting: ConnectOptions,
    stream: str,
    store: Datastore,
    crc: Crc,
    channels: Sequence[str],
    *,
    key: bytes | None = None,
    workers: int = 2,
) -> Job[Compared]:
    """Returns the job that compares a stream with channels of a store; nothing is changed on either side.

    Args:
        connecting: How to reach the server.
        stream: The stream.
        store: The store.
        crc: Its CRC.
        channels: Which went into the stream.
        key: The encryption key, if payloads are encrypted.
        workers: Files that are read at the same time.
    """

    async def compare(job: Job[Compared]) -> Compared:
        async with connect(connecting, name="stantools tui") as connection:
            js = JetStream(connection)
            info = await stream_info(js, stream)
            job.begin_phase("reading the store", store.data_size(patterns_for(channels)))
            source = await read_source(store, crc, channels, key=key, workers=workers, progress=job.advance)
            match = await match_stream(js, info, source, channels)
            job.begin_phase("reading the stream", match.source.count)
            proof = await prove_match(js, stream, match, job.advance)
        return Compared(stream, channels, match, proof)

    return Job("compare", lambda job: run_async(job, compare(job)))
