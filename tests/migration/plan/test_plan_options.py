"""What is asked for: overrides, mappings, prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError, UsageError
from stantools.migration.plan.choices import DurablesChoice, OriginHeaders
from stantools.migration.plan.overrides import Override, mapping_override, override_for, read_overrides, unused
from stantools.migration.plan.plan_options import PlanOptions

HOUR = 3600 * 10**9


def test_reading_overrides(tmp_path: Path) -> None:
    file = tmp_path / "overrides.yaml"
    file.write_text(
        """
        channels:
          orders.>:
            stream: ORDERS
            max_age: 72h
            replicas: 3
          orders.internal: {skip: yes}
          legacy:
            subject: legacy.events
            consumers: push
            origin_headers: off
        """
    )
    assert read_overrides(file) == (
        Override("orders.>", stream="ORDERS", settings={"max_age": 72 * HOUR, "num_replicas": 3}),
        Override("orders.internal", skip=True),
        Override("legacy", subject="legacy.events", consumers=DurablesChoice.PUSH, origin_headers=OriginHeaders.OFF),
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("channels:\n  a:\n    max_age: 3 days\n", 3, "expected a duration such as 30s, 72h or 1d12h"),
        ("channels:\n  a:\n    max_aeg: 3d\n", 3, "`max_aeg` is not known here"),
        ("channels:\n  a..b:\n    skip: yes\n", 3, "neither a channel nor a pattern"),
        ("channels:\n  a:\n    stream: a.b\n", 3, "cannot be the name of a stream"),
        ("channels:\n  a:\n    subject: a b\n", 3, "is not a subject"),
        ("channels:\n  a.*:\n    subject: x\n", 3, "for all channels that match"),
        ("channels:\n  a:\n    consumers: both\n", 3, "expected pull or push or none"),
        ("channels:\n  a:\n    storage: tape\n", 3, "expected file or memory"),
        ("channels:\n  a:\n    retention: interest\n", 3, "would remove messages"),
        ("channels: [a]\n", 1, "expected a group of `key: value`"),
        ("a: 1\n", 1, "`channels` is missing"),
        ("channels:\n  a: {}\n  a: {}\n", 3, "`a` occurs twice"),
    ],
)
def test_wrong_overrides_are_told_with_their_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_overrides(file)
    assert f"{file}, line {line}:" in caught.value.message
    assert said in caught.value.message
    assert caught.value.remedy


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreadableError, match="no such file"):
        read_overrides(tmp_path / "none")


def test_the_narrowest_override_wins_setting_by_setting() -> None:
    options = PlanOptions(
        overrides=(
            Override("orders.new", consumers=DurablesChoice.NONE, settings={"max_age": 1}),
            Override(">", stream="ALL", settings={"max_age": 3, "num_replicas": 3}),
            Override("orders.*", stream="ORDERS", settings={"max_age": 2, "max_msgs": 5}),
        )
    )
    found, origin = override_for(options.overrides, "orders.new")
    assert (found.stream, found.consumers, origin) == ("ORDERS", DurablesChoice.NONE, "orders.*")
    assert found.settings == {"max_age": 1, "num_replicas": 3, "max_msgs": 5}
    found, origin = override_for(options.overrides, "other")
    assert (found.stream, found.settings, origin) == ("ALL", {"max_age": 3, "num_replicas": 3}, ">")
    assert unused(options.overrides, ["x"]) == ["orders.new", "orders.*"]
    # A name that is no pattern and no channel is still looked up.
    assert override_for(options.overrides, "a*b")[0].stream == "ALL"


def test_mappings() -> None:
    assert mapping_override("orders.>=ORDERS") == Override("orders.>", stream="ORDERS")
    for text in ("orders", "=X", "a=", "a=b.c", "a..b=X"):
        with pytest.raises(UsageError):
            mapping_override(text)


def test_wrong_prefixes() -> None:
    rows: list[dict[str, str]] = [
        {"stream_prefix": "a."},
        {"stream_prefix": "x" * 101},
        {"subject_prefix": "a b."},
        {"subject_prefix": "."},
        {"push_prefix": ""},
        {"push_prefix": "a.*"},
    ]
    for wrong in rows:
        with pytest.raises(UsageError) as caught:
            PlanOptions(**wrong)  # type: ignore[arg-type]
            pytest.fail(f"accepted: {wrong!r}")
        assert caught.value.remedy, wrong
