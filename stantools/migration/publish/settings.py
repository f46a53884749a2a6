"""The configuration of a stream during filling, and its final one.

Limits would count fillers as messages and remove real ones for them; `deny_delete` would keep the fillers; without
acknowledgements no message is known to be stored. The server remembers each message id for `duplicate_window`, about
200 bytes each (gigabytes at full speed), and the guards do not need them (see `headers.guarded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stantools.errors import RefusedError, UsageError
from stantools.migration.plan.migration_plan import UNLIMITED
from stantools.migration.publish.resume import NotOursError
from stantools.streamfiles.stream_config import stream_setting

#: fields that hinder filling, with their values during it
_LIFTED: Final[Mapping[str, Any]] = {
    **UNLIMITED,
    "max_msg_size": -1,
    "discard": "old",
    "discard_new_per_subject": False,
    "no_ack": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
}
#: fields left out during filling: they would forward migrated messages, or change their subjects
_REMOVED: Final = ("republish", "subject_transform")
#: fields that are fixed when a stream is created
_FIXED: Final = ("subjects", "storage", "retention")
#: fields of streams whose messages come from elsewhere
_UNFIT: Final = ("mirror", "sources")

#: number of messages from which on their ids are not kept for the whole window
MANY_IDS: Final = 1_000_000
_SHORT_WINDOW: Final = 10_000_000_000
_DEFAULT_WINDOW: Final = 120_000_000_000

#: error code: the account demands `max_bytes`
MAX_BYTES_REQUIRED: Final = 10113
SUBJECTS_OVERLAP: Final = 10065


def loading_config(config: Mapping[str, Any], messages: int) -> dict[str, Any]:
    """Returns the configuration for filling a stream with `messages` messages; UsageError if it cannot be exact."""
    name = config.get("name")
    for field in _UNFIT:
        if config.get(field):
            raise UsageError(f"stream {name}: it cannot be filled, because its messages come from elsewhere ({field})")
    if config.get("retention", "limits") != "limits":
        raise UsageError(
            f"stream {name}: with the retention {config['retention']} messages would be removed before it is complete",
            "migrate with the retention limits, and change it afterwards",
        )
    loading = {key: value for key, value in config.items() if key not in _REMOVED}
    loading.update({key: value for key, value in _LIFTED.items() if key in config})
    if messages > MANY_IDS:
        loading["duplicate_window"] = _SHORT_WINDOW
    return loading


def with_max_bytes(loading_config: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Adds `max_bytes` for an account that demands it; excess messages are then an error, none is dropped."""
    if config.get("max_bytes", -1) <= 0:
        raise RefusedError(
            f"stream {config.get('name')}: the account demands that streams have max_bytes",
            "give the stream max_bytes in the plan",
        )
    return {**loading_config, "max_bytes": config["max_bytes"], "discard": "new"}


def final_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the final configuration of a stream, with two defaults written out."""
    age = config.get("max_age") or _DEFAULT_WINDOW
    return {"duplicate_window": min(_DEFAULT_WINDOW, age), "discard": "old", **config}


def check_fixed(name: str, existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises NotOursError if fixed fields of an existing stream are different."""
    for key in _FIXED:
        if wanted.get(key) is not None and existing.get(key) != wanted[key]:
            raise NotOursError(
                f"stream {name} already exists with {key} {existing.get(key)}, expected {wanted[key]}",
                "remove it, or choose another name",
            )


def differences(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns the differences in fields that filling changes: name, actual value, wanted value."""
    fields = [*_LIFTED, "duplicate_window"]
    found = [(name, stream_setting(existing, name), stream_setting(wanted, name)) for name in fields if name in wanted]
    changed = [each for each in found if each[1] != each[2]]
    removed = [name for name in _REMOVED if bool(existing.get(name)) != bool(wanted.get(name))]
    return changed + [(name, existing.get(name), wanted.get(name)) for name in removed]
