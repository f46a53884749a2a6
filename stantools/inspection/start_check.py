"""The check before a start of a server: does the start destroy anything that is intact?

It reads as little as the answer needs. A stream whose index the server trusts is not read by the start, so that only a
few megabytes of it are read here; a file store is read as far as its server reads it. The full forecast and survey
follow only where a start would change files of messages. Facts: jetstream-store.md sections 16 and 23, filestore.md
section 7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.escaping import escape
from stantools.inspection.stream_forecast.trusted_start import has_whole_blocks, is_trusted, size_of
from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.notation import counted, format_size, some_of
from stantools.progress import Progress
from stantools.streamfiles.directory import StoredStream

if TYPE_CHECKING:
    from stantools.inspection.forecast import ServerOptions
    from stantools.inspection.stream_forecast.cluster_start import ClusterStart
    from stantools.inspection.stream_forecast.directory_forecast import DirectoryForecast
    from stantools.store.directory import Datastore
    from stantools.streamfiles.raft_group import RaftGroup
    from stantools.streamfiles.survey import StreamSurvey

#: Bytes of blocks below trusted indexes that are read in any case; a server reads none of them when it starts.
READ_ANYWAY: Final = 64 << 20
_NAMED: Final = 3
#: beginning of the sentences of forecasts, before the version
_START: Final = "A start of nats-server "


@dataclass
class StartCheck:
    """The results so far; each text is a sentence without a full stop, its names are safe to show."""

    destroys: list[str] = field(default_factory=list)  #: intact data that the start destroys
    expires: list[str] = field(default_factory=list)  #: intact messages that limits of their stream or channel remove
    effects: list[str] = field(default_factory=list)  #: other harm, which leaves every byte where it is
    unread: list[str] = field(default_factory=list)  #: parts that the start does not read either
    unchecked: list[str] = field(default_factory=list)  #: parts of which nothing is known

    def interrupted(self, pending: Iterable[str]) -> None:
        names = [escape(each) for each in pending]
        self.unchecked.append(f"the time was over before {some_of(names, _NAMED)}" if names else "the time was over")


class StreamsStartCheck:
    """The check of the streams of a JetStream directory, one after the other."""

    def __init__(
        self,
        streams: Sequence[StoredStream],
        root: Path,
        rules: Sequence[ServerRules],
        now: int,
        groups: Sequence[RaftGroup] = (),
    ) -> None:
        """`groups` are the Raft groups of the server, if it is a node of a cluster."""
        self.pending = list(streams)
        self._root, self._rules, self._now, self._groups = root, rules, now, groups
        self._cluster: ClusterStart | None = None

    def pending_names(self) -> list[str]:
        return [each.full_name for each in self.pending]

    def run(self, check: StartCheck, progress: Progress, *, every_block: bool = False) -> None:
        """Adds the effects of a start; `every_block` reads the blocks below trusted indexes as well."""
        if self._groups:
            self._find_orphans(check)
        trusted = [
            each
            for each in self.pending
            if all(_readable(block.path) for block in each.blocks) and is_trusted(each, self._rules, self._now)
        ]
        self.pending.sort(key=lambda each: each not in trusted)
        if every_block or size_of(trusted) <= READ_ANYWAY:
            whole = [each for each in trusted if has_whole_blocks(each, progress)]
        else:
            whole = trusted
            check.unread.append(
                f"{format_size(size_of(trusted))} of blocks were not read: the server trusts their index, and its "
                "start does not read them either; --every-block does"
            )
        self.pending = [each for each in self.pending if each not in whole]
        forecasts: dict[str, list[DirectoryForecast]] = {each.version: [] for each in self._rules}
        try:
            while self.pending:
                self._check(self.pending[0], check, forecasts, progress)
                del self.pending[0]
        finally:
            _tell(forecasts, check)

    def _find_orphans(self, check: StartCheck) -> None:
        from stantools.inspection.stream_forecast.cluster_start import ORPHAN_SECONDS, cluster_start

        self._cluster = cluster = cluster_start(self.pending, self._groups, self._rules[-1])
        orphans = [each for each in self.pending if cluster.may_be_orphan(each.node, (each.account, each.name))]
        if orphans:
            names = some_of([escape(each.full_name) for each in orphans], _NAMED)
            check.destroys.append(
                f"its cluster deletes {names} {ORPHAN_SECONDS} seconds after the start: the meta group on this node "
                "does not assign them"
            )

    def _check(
        self,
        stream: StoredStream,
        check: StartCheck,
        forecasts: dict[str, list[DirectoryForecast]],
        progress: Progress,
    ) -> None:
        name = stream.full_name
        if lost := next((block for block in stream.blocks if not _readable(block.path)), None):
            text = f"{escape(str(lost.path))}: this user may not read it"
            if any(each.deletes_unopened for each in self._rules):
                deleting = next(each for each in self._rules if each.deletes_unopened)
                check.destroys.append(
                    f"{text}; nats-server {deleting.version} deletes the whole directory of {escape(name)} if it "
                    "cannot open a block"
                )
            else:
                check.unchecked.append(text)
            return
        if stream.locked or (stream.encrypted and stream.server_keys is None):
            check.unchecked.append(f"{escape(name)} is encrypted, and {stream.locked or 'its key was not given'}")
            return
        for rules in self._rules:
            forecasts[rules.version].append(self._forecast(stream, rules, progress))

    def _forecast(self, stream: StoredStream, rules: ServerRules, progress: Progress) -> DirectoryForecast:
        from stantools.inspection.stream_forecast.directory_forecast import forecast_directory
        from stantools.streamfiles.survey import StreamSurvey

        start: dict[str, Any] = {"now": self._now, "cluster": self._cluster}
        found = forecast_directory([stream], self._root, rules, progress=progress, **start)
        if not _changes_messages(found):
            return found

        def survey(each: StoredStream) -> StreamSurvey:
            return StreamSurvey(each, progress)

        return forecast_directory([stream], self._root, rules, survey=survey, **start)


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK)


def _changes_messages(forecast: DirectoryForecast) -> bool:
    """Returns whether a start, or the first lookups after it, change files of messages: also by deletions."""
    changed = [*forecast.changes.files.items(), *forecast.later.items()]
    return any(
        change.before and (change.after or 0) != change.before
        for name, change in changed
        if ".blk" in name or name.endswith(".new")
    )


def _tell(forecasts: dict[str, list[DirectoryForecast]], check: StartCheck) -> None:
    """Describes the forecasts of the streams of a directory, version by version."""
    if not any(forecasts.values()):
        return
    from stantools.inspection.stream_forecast.directory_forecast import merged_forecast
    from stantools.inspection.stream_forecast.start_report import expiry_sentence, is_harmless, start_sentence

    told: dict[tuple[str, str], list[str]] = {}  # versions by kind and sentence
    for version, parts in forecasts.items():
        whole = merged_forecast(version, parts)
        losses = [each.loss for each in whole.streams.values()]
        if any((each.destroyed - each.expired) or each.removed for each in losses):
            kind, sentence = "destroys", start_sentence(whole)
        elif any(each.expired for each in losses):
            kind, sentence = "expires", expiry_sentence(whole)
        elif not is_harmless(whole):
            kind, sentence = "effects", start_sentence(whole)
        else:
            continue
        told.setdefault((kind, sentence.removeprefix(f"{_START}{version} ").rstrip(".")), []).append(version)
    for (kind, text), versions in told.items():
        getattr(check, kind).append(f"{_START}{' or '.join(versions)} {text}")


def check_store_start(
    store: Datastore, servers: Sequence[ServerOptions], check: StartCheck, progress: Progress, *, truncate: bool
) -> None:
    """Adds the effects of a start on a file store, by each of some servers; `truncate`: with -file_truncate_bad_eof."""
    from stantools.inspection.forecast import Harm, forecast

    told: dict[tuple[str, str], list[str]] = {}  # versions by kind and sentence
    for options in servers:
        found = forecast(store, options, truncate=truncate, lookups=False, progress=progress)
        sentences = []
        if not found.starts:
            sentences.append(("effects", f"ends with exit code {found.exit_code}: {escape(found.error or '')}"))
        elif not found.recovered and store.channel_names and not found.destroys:
            sentences.append(("destroys", "finds no state, and begins the sequences of its channels anew"))
        for kind in ("expires", "destroys") if found.starts else ():
            losses = [each for each in found.destroys if (each.how is Harm.REMOVED) == (kind == "expires")]
            if losses:
                more = f"; and {counted(len(losses) - _NAMED, 'more effect')}" if len(losses) > _NAMED else ""
                text = "; ".join(each.sentence() for each in losses[:_NAMED])
                sentences.append((kind, f"destroys intact data: {text}{more}"))
        for sentence in sentences:
            told.setdefault(sentence, []).append(options.version)
    for (kind, text), versions in told.items():
        getattr(check, kind).append(f"A start of nats-streaming-server {' or '.join(versions)} {text}")
