"""Whatever is done with a stream, it has what a simple model has, in memory and in files, before and after a crash."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.stores.streams import file_stream
from tests.broker.streams.world import World

SUBJECTS = ("s.a", "s.b", "s.c.d")
PATTERNS = (*SUBJECTS, "s.*", "s.c.>", ">", "none")
SECOND = 1_000_000_000


class Model:
    """A stream as a dict."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.last = config, 0
        self.messages: dict[int, tuple[str, bytes]] = {}

    def of(self, pattern: str) -> list[int]:
        wanted = {"s.*": SUBJECTS[:2], "s.c.>": SUBJECTS[2:], ">": SUBJECTS}.get(pattern, (pattern,))
        return [number for number, (subject, _) in sorted(self.messages.items()) if subject in wanted]

    def publish(self, subject: str, payload: bytes) -> bool:
        most, each = self.config.get("max_msgs", 0), self.config.get("max_msgs_per_subject", 0)
        own = self.of(subject)
        makes_room = each and len(own) >= each
        if self.config.get("discard") == "new" and most and len(self.messages) >= most and not makes_room:
            return False
        self.last += 1
        self.messages[self.last] = (subject, payload)
        while each and len(own := self.of(subject)) > each:
            del self.messages[own[0]]
        while most and len(self.messages) > most:
            del self.messages[min(self.messages)]
        return True

    def purge(self, pattern: str, seq: int, keep: int) -> int:
        found = self.of(pattern or ">")
        gone = found[:-keep] if keep else [each for each in found if not seq or each < seq]
        for number in gone:
            del self.messages[number]
        if seq and pattern in ("", ">") and seq > self.last:
            self.last = seq - 1
        return len(gone)

    def state(self) -> dict[str, Any]:
        first = min(self.messages, default=self.last + 1) if self.last else 0
        return {"messages": len(self.messages), "first_seq": first, "last_seq": self.last}


publishes = st.tuples(st.just("publish"), st.sampled_from(SUBJECTS), st.binary(max_size=40))
deletes = st.tuples(st.just("delete"), st.integers(1, 40), st.booleans())
purges = st.tuples(
    st.just("purge"), st.sampled_from(("", *PATTERNS)), st.one_of(
        st.fixed_dictionaries({}),
        st.fixed_dictionaries({"seq": st.integers(1, 60)}),
        st.fixed_dictionaries({"keep": st.integers(1, 5)}),
    )
)  # fmt: skip
ends = st.sampled_from((("crash",), ("restart",)))
configs = st.fixed_dictionaries(
    {},
    optional={
        "max_msgs": st.integers(1, 10),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard": st.sampled_from(("old", "new")),
    },
)
steps = st.lists(st.one_of(publishes, publishes, publishes, deletes, purges, ends), max_size=60)


@settings(max_examples=300)
@given(st.sampled_from(("memory", "file")), configs, steps)
def test_a_stream_is_as_its_model(storage: str, config: dict[str, Any], todo: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(file_stream, "BLOCK_SIZE", 400):
        world = World(Path(folder) if storage == "file" else None)
        world.create("S", subjects=["s.>"], storage=storage, **config)
        model = Model(config)
        for step in todo:
            play(world, model, step, storage)
            state = world.state("S")
            assert {name: state[name] for name in model.state()} == model.state(), step
        check(world, model)
        world.server.stop()


def play(world: World, model: Model, step: Any, storage: str) -> None:
    match step:
        case "publish", subject, payload:
            stored = model.publish(subject, payload)
            assert world.publish(subject, payload)["seq"] == (model.last if stored else 0)
        case "delete", sequence, erase:
            said = world.api("STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": not erase})
            assert ("error" not in said) == (model.messages.pop(sequence, None) is not None)
        case "purge", pattern, options:
            said = world.api("STREAM.PURGE.S", {"filter": pattern, **options})
            assert said["purged"] == model.purge(pattern, options.get("seq", 0), options.get("keep", 0))
        case ("crash",) if storage == "file":
            world.crash()
        case ("restart",) if storage == "file":
            world.restart()


def check(world: World, model: Model) -> None:
    """Compares every message, and every search."""
    for sequence in range(1, model.last + 2):
        found = world.api("STREAM.MSG.GET.S", {"seq": sequence})
        if sequence in model.messages:
            subject, payload = model.messages[sequence]
            assert found["message"]["subject"] == subject
            assert base64.b64decode(found["message"].get("data", "")) == payload
        else:
            assert found["error"]["err_code"] == 10037
    for pattern in PATTERNS:
        own = model.of(pattern)
        last = world.api("STREAM.MSG.GET.S", {"last_by_subj": pattern})
        assert last.get("message", {}).get("seq") == (own[-1] if own else None)
        for start in range(1, model.last + 1, 3):
            after = [each for each in own if each >= start]
            found = world.api("STREAM.MSG.GET.S", {"next_by_subj": pattern, "seq": start})
            assert found.get("message", {}).get("seq") == (after[0] if after else None)
    counts = {subject: len(model.of(subject)) for subject in SUBJECTS if model.of(subject)}
    assert world.state("S").get("subjects", {}) == counts
