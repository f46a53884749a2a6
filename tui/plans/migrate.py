"""Wizard of `migrate`: channels into JetStream streams and durables into consumers, exactly, with a proof."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.inspection.report import NextStep, ReportRemark, command_line
from stantools.migration.journal import JournalObserver, StreamResult, StreamStage
from stantools.migration.migration_report import migration_plan_report, migration_report
from stantools.migration.plan.migration_plan import MigrationPlan, Remark
from stantools.migration.plan.overrides import Override, mapping_override, read_overrides
from stantools.migration.plan.plan_options import PlanOptions, TargetPaths
from stantools.migration.plan.planner import make_plan
from stantools.migration.run_options import ApplySettings
from stantools.migration.targets.stream_load import ExistingPolicy
from stantools.migration.targets.target import opened
from stantools.migration.workflow import (
    Migration,
    check_plan_file,
    default_plan_file,
    read_source,
    serious,
)
from stantools.nats.connect_options import ConnectOptions, split_servers
from stantools.options import LimitOptions, Option, declared
from stantools.store.limits import ChannelLimits, PatternLimits
from tui.cells import counted, name_text
from tui.jobs import Cancelled, Job
from tui.plans.form import FieldError, FormField, field_of, fields_of
from tui.plans.wizard import PlanOutcome, PlanPreview, SourceStore, Wizard


@dataclass(frozen=True)
class PreparedPlan:
    migration: Migration
    places: TargetPaths
    connect_options: ConnectOptions


class JobWatch(JournalObserver):
    """Reports the progress of a migration to a job."""

    def __init__(self, job: Job[PlanOutcome], *, stops: bool) -> None:
        self._job = job
        self._stops = stops
        self.notes: list[str] = []

    def begin(self, stream: str, stage: StreamStage, messages: int) -> None:
        self._job.phase = f"{'loading' if stage is StreamStage.LOAD else 'comparing'} {name_text(stream)}"

    def advance(self, stream: str, messages: int) -> None:
        try:
            self._job.advance(messages)
        except Cancelled:
            if self._stops:
                raise

    def note(self, text: str) -> None:
        self.notes.append(text)


class MigrateWizard(Wizard[PreparedPlan]):
    VERB = "migrate"
    UNIT = "messages"
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {
        ExitCode.CLEAN: "done and proven",
        ExitCode.FINDINGS: "something differs",
        ExitCode.UNREACHABLE: "the server, or the store, cannot be used",
        ExitCode.REFUSED: "refused",
        ExitCode.LOSS: "done, with the accepted loss",
    }

    def __init__(self, source: SourceStore) -> None:
        super().__init__(source, *self.fields(source))
        if source.connect_options is None and "out" in self.form.fields:
            self.form.fields["out"].value = source.beside(".backups", new=False)

    def fields(self, source: SourceStore) -> list[FormField]:
        file = os.fspath(default_plan_file(source.named))
        return [
            FormField(
                "server",
                "a running server: nats://host:4222; embedded starts one; or fill in one of the next two",
                given_servers(source),
            ),
            *fields_of(
                TargetPaths,
                out="without a server: a directory for stream backups, for nats stream restore",
                jetstream_store="the store directory of a stopped nats-server",
                account="with jetstream-store: the account",
            ),
            field_of(
                "plan",
                Option(help="", kind=Path, default=Path(file) if file.isprintable() else ""),
                "the plan file; the journal is written beside it",
            ),
            *fields_of(
                PlanOptions,
                channels="only matching channels, with * and >; separate several with blanks",
                via="restore is exact in every detail; publish if restore is not permitted",
                for_broker="into the streams of a broker with this cluster id, clients and subscriptions included",
                maps="PATTERN=STREAM puts several channels into one stream; separate several with blanks",
                override="YAML with other settings for some channels",
                stream_prefix="prefix of the names of streams",
                subject_prefix="prefix of every subject: stan turns orders into stan.orders",
                consumers="what durables become",
                push_prefix="prefix of the deliver subjects of push consumers",
                storage="of the streams",
                replicas="of each stream",
                origin_headers="headers with channel, sequence and time",
            ),
            *fields_of(
                LimitOptions,
                max_msgs="the streaming server's limit",
                max_bytes="the streaming server's limit, such as 64MB",
                max_age="the streaming server's limit, such as 72h",
            ),
            *fields_of(
                PlanOptions,
                generation="if sequences restarted: split, newest, or a number",
                archived="take messages from .bak slices as well",
                keep_encrypted="migrate encrypted payloads as they are stored, without a key",
            ),
            *fields_of(
                ApplySettings,
                accept_loss="continue although the store is damaged and data is lost",
                replace="delete existing streams that differ, and load them again",
                append_missing="publish the messages missing at the end of an existing stream",
                proof="compare every message afterwards, or only counts",
                compress="compress network traffic",
            ),
            *fields_of(
                TargetPaths,
                force="with jetstream-store: continue although a server seems to use the directory",
                embedded_store="directory for the streams of an embedded server",
            ),
        ]

    def command(self) -> list[str]:
        """Returns the equivalent command line, without passwords."""
        source, words = self.source, ["stantools", self.VERB, os.fspath(self.source.named), "--to", "jetstream"]
        if server := self.form.text("server"):
            words += ["--server", without_secrets(server)]
        words += [*self.form.words(without={"server"}), *source.reading_words()]
        if source.connect_options is not None and not self.is_local:
            words += connecting_words(source.connect_options)
        if source.read_options.encryption_key is not None:
            words += ["--encryption-key-env", "NATS_STREAMING_ENCRYPTION_KEY"]
        return [*words, "--yes"]

    @property
    def is_local(self) -> bool:
        """Whether the target is a directory."""
        return bool(self.form.text("out") or self.form.text("jetstream-store"))

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> PreparedPlan:
        form, source = self.form, self.source
        places, connect_options = self._target()
        file: Path = form.needed("plan", "no plan file")
        overrides = self._overrides()
        store = source.open()
        limits = PatternLimits.given(form.taken(LimitOptions), ChannelLimits())
        plan_options = form.taken(PlanOptions, limits=limits, workers=source.workers)
        names = store.chosen(plan_options.channels)
        self.warn_of_uses(preview)
        job.begin_phase("reading", store.data_size(names))
        found = read_source(store, plan_options.source_options(), progress=job.advance)
        job.begin_phase("asking the target")
        with opened(places, connect_options, start=False, check=job.check) as target:
            wanted = plan_options.settled(target.reference(), overrides, decrypted=store.key is not None)
            plan = make_plan(found, wanted, wanted.target.version)
            if form.flag("replace") and form.flag("append-missing"):
                raise FieldError("replace", "it and --append-missing exclude each other", "choose one of them")
            migration = Migration(plan, found, target, form.taken(ApplySettings).options(plan.way), file)
            problems, present = migration.problems(), migration.contents()
        preview.attempt(partial(check_plan_file, file, plan))
        version = ".".join(map(str, plan.target.version or ()))
        preview.report = migration_plan_report(plan, problems, present)
        preview.report.facts += [*([("nats-server", version)] if version else []), ("plan", name_text(file))]
        lost = f"{counted(plan.lost, 'message')} {'is' if plan.lost == 1 else 'are'}" if plan.lost else "something is"
        self.add_obstacles(preview, plan, problems, f"{lost} missing in the store")
        if places.out is not None:
            preview.add_free(places.out / "1")
        return PreparedPlan(migration, places, connect_options)

    def warn_of_uses(self, preview: PlanPreview) -> None:
        for use in self.source.uses(force=True):
            text = f"{use.detail}: messages written from now on are not migrated; stop the server first"
            preview.warnings.append(ReportRemark("warning", text, "warn"))

    def add_obstacles(self, preview: PlanPreview, plan: MigrationPlan, problems: Sequence[Remark], loss: str) -> None:
        preview.obstacles += [
            RefusedError(f"{name_text(note.about)}: {note.text}" if note.about else note.text, note.remedy)
            for note in serious(problems)
        ]
        if plan.lossy and not self.form.flag("accept-loss"):
            preview.obstacles.append(RefusedError(loss, "choose accept-loss to migrate the intact messages"))

    def _target(self) -> tuple[TargetPaths, ConnectOptions]:
        form, given = self.form, self.source.connect_options
        out, store, server = form.value("out"), form.value("jetstream-store"), form.text("server")
        if out and store:
            raise FieldError("out", "it and --jetstream-store exclude each other", "give one of them, or a server")
        if server and (out or store):
            raise FieldError("server", "the target is already a directory", "leave one of them empty")
        if not (server or out or store or given):
            raise FieldError("server", "no target for the streams", form.fields["server"].help)
        return form.taken(TargetPaths), self.connect_options()

    def connect_options(self) -> ConnectOptions:
        options, server = self.source.connect_options or ConnectOptions(), self.form.text("server")
        if not server or server == given_servers(self.source):
            return options
        try:
            return replace(options, servers=split_servers((server,))).checked()
        except StantoolsError as problem:
            raise FieldError("server", problem.message, problem.remedy) from problem

    def _overrides(self) -> tuple[Override, ...]:
        try:
            mapped = [mapping_override(text) for text in self.form.words_of("map")]
        except StantoolsError as problem:
            raise FieldError("map", problem.message, problem.remedy) from problem
        file = self.form.value("override")
        return (*mapped, *(read_overrides(file) if file else ()))

    def question(self) -> str:
        plan = self.plan.migration.plan
        text = (
            f"{counted(len(plan.streams), 'stream')} with {counted(plan.messages, 'message')} and "
            f"{counted(plan.consumers, 'consumer')} are created in {name_text(str(plan.target))}. "
            f"{self.source.shown} is only read."
        )
        options = self.plan.migration.options
        if options and options.existing is ExistingPolicy.REPLACE:
            text += " Existing streams that differ are deleted."
        return text

    def cancelled(self) -> str:
        return (
            "completed streams stay; the next run of the same plan continues the unfinished ones, or loads them "
            f"again. {self.source.shown} is unchanged"
        )

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        made = self.plan
        migration = made.migration
        job.begin_phase("asking the target", migration.amount)
        local = made.places.out is not None or made.places.jetstream_store is not None
        watch = JobWatch(job, stops=local)
        with opened(made.places, made.connect_options, note=watch.note, check=job.check) as target:
            migration = replace(migration, target=target)
            if made.connect_options.embedded and not local:
                migration = replace(migration, plan=migration.plan.at(target.reference()))
            migration.keep_plan()
            with migration.journal() as journal:
                results = migration.apply(journal, watch)
        return self._outcome_of(migration, results, watch.notes)

    def _outcome_of(self, migration: Migration, results: list[StreamResult], notes: list[str]) -> PlanOutcome:
        plan, file = migration.plan, None if migration.restored else migration.file
        outcome = self.outcome(migration_report(plan, results, file, loaded=True))
        report = outcome.report
        report.list_remarks((ReportRemark("note", text) for text in notes), "note")
        if migration.restored:
            return outcome
        report.facts += [("in", name_text(str(plan.target))), ("plan", name_text(str(file)))]
        if report.role == "good":
            step = NextStep("verify again at any time", [command_line("stantools", "migrate", "verify", str(file))])
            report.next.insert(0, step)
        return outcome


def given_servers(source: SourceStore) -> str:
    return ",".join(source.connect_options.servers) if source.connect_options else ""


def without_secrets(servers: str) -> str:
    try:
        return ",".join(ConnectOptions(servers=split_servers((servers,))).checked().servers)
    except StantoolsError:
        return "URL"


def connecting_words(connect_options: ConnectOptions) -> Iterator[str]:
    for name, option in declared(ConnectOptions):
        value, flag = getattr(connect_options, name), f"--{option.flag(name)}"
        if value is True:
            yield flag
        elif value and name not in ("servers", "timeout"):
            yield from (flag, os.fspath(value))
