"""The configuration that a stream has while it is filled, and the one that it gets in the end.

Limits would see fillers as messages and throw real ones away for them; `deny_delete` would keep the fillers; without
acknowledgements nothing is known to be stored. The server remembers the id of every message for `duplicate_window`,
some 200 bytes each, gigabytes at full speed, and the guards do not need it (see `headers.guarded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stantools.errors import RefusedError, UsageError
from stantools.migration.plan.model import UNLIMITED
from stantools.migration.publish.resume import NotOursError

#: What is in the way -> what it is meanwhile.
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
#: Left out meanwhile: they would send migrated messages on, or store them under other subjects.
_REMOVED: Final = ("republish", "subject_transform")
#: What cannot be changed after a stream was made.
_FIXED: Final = ("subjects", "storage", "retention")
#: Where messages come from elsewhere, or are gone when they are read.
_UNFIT: Final = ("mirror", "sources")

#: From this number of messages on, their ids are not kept for the whole window while they are published.
MANY_IDS: Final = 1_000_000
_SHORT_WINDOW: Final = 10_000_000_000
_DEFAULT_WINDOW: Final = 120_000_000_000

#: The account demands `max_bytes`.
MAX_BYTES_REQUIRED: Final = 10113
SUBJECTS_OVERLAP: Final = 10065


def loading_config(config: Mapping[str, Any], messages: int) -> dict[str, Any]:
    """Returns the configuration to fill a stream with.

    Args:
        config: The one that it gets in the end.
        messages: How many messages will be published.

    Raises:
        UsageError: Publishing into such a stream cannot be exact.
    """
    name = config.get("name")
    for field in _UNFIT:
        if config.get(field):
            raise UsageError(f"stream {name}: it cannot be filled, it takes its messages from elsewhere ({field})")
    if config.get("retention", "limits") != "limits":
        raise UsageError(
            f"stream {name}: with the retention {config['retention']} messages would be gone before it is complete",
            "migrate with the retention limits, and change it afterwards",
        )
    loading = {key: value for key, value in config.items() if key not in _REMOVED}
    loading.update({key: value for key, value in _LIFTED.items() if key in config})
    if messages > MANY_IDS:
        loading["duplicate_window"] = _SHORT_WINDOW
    return loading


def with_max_bytes(loading: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns it for an account that demands `max_bytes`: what does not fit is an error then, nothing is dropped."""
    if config.get("max_bytes", -1) <= 0:
        raise RefusedError(
            f"stream {config.get('name')}: the account demands that streams have max_bytes",
            "give the stream max_bytes in the plan",
        )
    return {**loading, "max_bytes": config["max_bytes"], "discard": "new"}


def final_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration that a stream gets in the end, with two defaults written out."""
    age = config.get("max_age") or _DEFAULT_WINDOW
    return {"duplicate_window": min(_DEFAULT_WINDOW, age), "discard": "old", **config}


def check_fixed(name: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Checks that a stream that is there has what cannot be changed of it.

    Raises:
        NotOursError: It has something else.
    """
    for key in _FIXED:
        if wanted.get(key) is not None and there.get(key) != wanted[key]:
            raise NotOursError(
                f"stream {name} already exists with {key} {there.get(key)}, expected {wanted[key]}",
                "remove it, or choose another name",
            )


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns what differs in what is changed for filling a stream: name, as it is there, as it should be."""
    fields = [*_LIFTED, "duplicate_window"]
    found = [(name, _plain(name, there), _plain(name, wanted)) for name in fields if name in wanted]
    changed = [each for each in found if each[1] != each[2]]
    removed = [name for name in _REMOVED if bool(there.get(name)) != bool(wanted.get(name))]
    return changed + [(name, there.get(name), wanted.get(name)) for name in removed]


def _plain(field: str, config: Mapping[str, Any]) -> Any:
    """The value, as the server writes what is not set."""
    none = _LIFTED.get(field)
    value = config.get(field)
    if field == "max_age":
        return value or 0
    return none if value is None or (value == 0 and none == -1) else value
