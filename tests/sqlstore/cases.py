"""Golden SQL stores as tests use them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stantools.notation import parse_duration
from stantools.sqlstore.dump_reader import DumpReader, opened_file
from stantools.sqlstore.sql_store import SqlStore
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.conftest import others_slow
from tests.goldenstores import unpacked

CASES = sorted(path.name for path in (unpacked() / "sql").iterdir())
#: Those that both kinds of databases have, or that differ from another one in nothing that is read.
_LIKE_OTHERS = {
    "m_blob_64k_not_strict", "m_bulk_insert", "m_client_ids", "m_clients", "m_damage_base", "m_durables", "m_ft_lock",
    "m_late_acks", "m_longblob", "m_no_caching", "m_server_info_id", "m_switch_to_caching", "m_timestamps",
    "m_utf8_names", "p_dump_forms", "p_ft_stopped", "p_many_channels", "p_max_age", "p_mixed_caching",
    "p_pending_order", "p_server_info_version", "p_sub_rows", "p_sum_negative", "p_tail_gone",
}  # fmt: skip
each_case = pytest.mark.parametrize("case", others_slow(CASES, set(CASES) - _LIKE_OTHERS))


def expected(golden_sql: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden_sql / case / "expected.json").read_bytes())
    return found


def read(path: Path) -> DumpReader:
    return DumpReader(path, partial(opened_file, path))


def opened(path: Path) -> SqlStore:
    return SqlStore(str(path), read(path))


def limits(options: dict[str, Any]) -> StoreLimits:
    age = parse_duration(options["max_age"])
    names = ("max_msgs", "max_bytes", "max_subs")
    return StoreLimits(channel=ChannelLimits(max_age_ns=age, **{name: options[name] for name in names}))


def with_arguments(options: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    """Returns the options with those of a command line."""
    found, words = dict(options), list(arguments)
    while words:
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        value = value if equals else words.pop(0)
        found[name] = value == "true" if value in ("true", "false") else value if name == "max_age" else int(value)
    return found
