"""What the real server saw, in the names of our json contracts."""

from __future__ import annotations

import base64
import re
from typing import Any

from tests.conftest import golden_cases, load_expected

_NAMES = {
    "ID": "id",
    "ClientID": "client_id",
    "QGroup": "q_group",
    "HbInbox": "hb_inbox",
    "ConnID_b64": "conn_id",
    "ClusterID": "cluster_id",
    "NodeID": "node_id",
}


def snake(name: str) -> str:
    return _NAMES.get(name) or re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    return {snake(name): value for name, value in record.items()}


def healthy_cases() -> list[str]:
    return [case for case in golden_cases() if "damage" not in load_expected(case)]


def options_of(case: str) -> list[str]:
    """The options under which the facts of a golden store hold."""
    options = load_expected(case)["options"]
    return ["--max-msgs", str(options["max_msgs"]), "--max-bytes", str(options["max_bytes"])]


def key_of(case: str) -> str | None:
    encryption = load_expected(case)["options"]["encryption"]
    return encryption["key"] if encryption else None


def payload_matches(message: dict[str, Any], data: str) -> bool:
    import hashlib

    payload = base64.b64decode(data)
    return len(payload) == message["len"] and hashlib.sha256(payload).hexdigest() == message["sha256"]
