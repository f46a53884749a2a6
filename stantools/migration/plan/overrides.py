"""Settings for single channels in planning.

An override file:

    channels:
      orders.>:                 # NATS wildcards; of several that match the narrowest wins, setting by setting
        stream: ORDERS          # several channels into one stream: they are renumbered
        max_age: 72h
        replicas: 3
      orders.internal:
        skip: yes
      legacy:
        subject: legacy.events
        consumers: push         # pull, push or none
        origin_headers: yes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from stantools.errors import UsageError
from stantools.migration.plan.choices import DurablesChoice, OriginHeaders
from stantools.migration.plan.document import PlanSection, load
from stantools.migration.plan.fields import DERIVED, FLAG, STREAM_FIELDS, Codec, PlanField, lines, read_fields
from stantools.nats.stream_names import name_problem, subject_problem
from stantools.store.directory import subject_matches
from stantools.store.limits import is_channel_name, narrowness

_HEADERS = Codec(lambda value: OriginHeaders.ON if value.flag() else OriginHeaders.OFF, FLAG.write)


@dataclass(frozen=True)
class Override:
    """Settings of the channels that a pattern matches; None: as for all channels."""

    pattern: Annotated[str, DERIVED]  #: a channel's name, or a pattern with NATS wildcards
    skip: bool | None = None  #: the channels are not migrated
    stream: str | None = None  #: name of their common stream
    subject: str | None = None  #: subject of the messages; only for a single channel
    consumers: DurablesChoice | None = None  #: consumers for their durables
    origin_headers: Annotated[OriginHeaders | None, PlanField(codec=_HEADERS)] = None
    settings: Mapping[str, Any] = field(default_factory=dict)  #: fields of the stream configuration

    def __post_init__(self) -> None:
        if not is_channel_name(self.pattern, wildcards=True):
            raise UsageError(
                f"{self.pattern!r} is neither a channel nor a pattern of channels",
                "use * for one token, > for the rest",
            )
        if self.stream is not None and (problem := name_problem(self.stream)):
            raise UsageError(f"{self.stream!r} cannot be the name of a stream: {problem}", "choose another name")
        if self.subject is None:
            return
        if problem := subject_problem(self.subject):
            raise UsageError(problem, "choose another subject")
        if not is_channel_name(self.pattern):
            raise UsageError(
                f"the subject {self.subject!r} is given for all channels that match {self.pattern!r}",
                "give subjects channel by channel, or a prefix for all of them",
            )


def override_for(overrides: Sequence[Override], channel: str) -> tuple[Override, str]:
    """Returns the settings of a channel, and the pattern that its stream comes from ("" if none)."""
    if not overrides:
        return Override(">"), ""
    matching = [each for each in overrides if subject_matches(each.pattern, channel)]
    values: dict[str, Any] = {"pattern": channel if is_channel_name(channel) else ">"}
    settings: dict[str, Any] = {}
    origin = ""
    # widest first; the later one of equal width wins
    for each in sorted(matching, key=lambda override: narrowness(override.pattern)):
        settings |= each.settings
        for member in fields(each):
            value = getattr(each, member.name)
            if member.name not in ("pattern", "settings") and value is not None:
                values[member.name] = value
        if each.stream is not None:
            origin = each.pattern
    return Override(**values, settings=settings), origin


def unused(overrides: Sequence[Override], channels: Iterable[str]) -> list[str]:
    names = list(channels)
    return [o.pattern for o in overrides if not any(subject_matches(o.pattern, name) for name in names)]


def mapping_override(text: str) -> Override:
    pattern, sign, stream = text.partition("=")
    if not sign or not pattern:
        raise UsageError(f"{text!r} does not map channels to a stream", "write it as PATTERN=STREAM")
    return Override(pattern, stream=stream)


def read_overrides(path: Path) -> tuple[Override, ...]:
    document = load(path, "a file of overrides")
    channels = document.take("channels").section()
    document.finish()
    return tuple(_override(pattern, value.section()) for pattern, value in channels.rest())


def _override(pattern: str, section: PlanSection) -> Override:
    values = read_fields(section, lines(Override))
    settings = read_fields(section, STREAM_FIELDS)
    section.finish()
    try:
        return Override(pattern, **values, settings=settings)
    except UsageError as error:
        if error.message.startswith(f"{section.file}, line"):
            raise
        raise section.fail(error.message, error.remedy) from error
