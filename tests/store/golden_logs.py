"""Golden logs for tests: which stores have them, what they hold, and mutations of them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import ClientsState
from stantools.store.sublog import SubsState
from tests.conftest import GOLDEN, MUTATION_SETS, load_expected


def crc_of(case: str) -> Crc:
    return Crc(load_expected(case)["options"]["file_crc_poly"])


def read(path: Path) -> memoryview:
    return memoryview(path.read_bytes())


def stores() -> list[str]:
    """All golden stores, also those that mutations start from."""
    return sorted(p.name for p in GOLDEN.iterdir() if (p / "datastore").is_dir())


def logs(case: str, name: str) -> list[Path]:
    """All files of a name (server.dat, clients.dat, subs.dat) in one golden store."""
    return sorted(path for path in (GOLDEN / case / "datastore").rglob(name) if path.is_file())


def mutations(*names: str) -> Iterator[tuple[str, dict[str, Any], Path]]:
    """All mutations of files of these names: the set, the mutation and the file before it."""
    for case in MUTATION_SETS:
        for mutation in load_expected(case)["mutations"]:
            path = GOLDEN / case / "datastore" / mutation["file"]
            if path.name in names:
                yield case, mutation, path


def mutate(data: bytes, mutation: dict[str, Any]) -> bytes | None:
    """What a mutation makes of a file; None where it deletes it."""
    at = mutation.get("offset", 0)
    match mutation["op"]:
        case "set":
            return data[:at] + bytes([mutation["value"]]) + data[at + 1 :]
        case "setbytes":
            new = bytes.fromhex(mutation["hex"])
            return data[:at] + new + data[at + len(new) :]
        case "truncate":
            return data[:at]
        case "append":
            return data + bytes.fromhex(mutation["hex"])
        case "append_zeros":
            return data + bytes(mutation["count"])
        case "delete":
            return None
    raise AssertionError(f"unknown mutation {mutation}")


def subscriptions_json(state: SubsState) -> list[dict[str, Any]]:
    """The folded state as golden's facts spell it."""
    return sorted(
        (subscription_json(s.state) | {"pending": sorted(s.pending)} for s in state.subscriptions.values()),
        key=lambda s: s["ID"],
    )


def subscription_json(state: pb.SubState) -> dict[str, Any]:
    return {
        "ID": state.id,
        "ClientID": state.client_id.decode(),
        "QGroup": state.q_group.decode(),
        "Inbox": state.inbox.decode(),
        "AckInbox": state.ack_inbox.decode(),
        "MaxInFlight": state.max_in_flight,
        "AckWaitInSecs": state.ack_wait_in_secs,
        "DurableName": state.durable_name.decode(),
        "LastSent": state.last_sent,
        "IsDurable": state.is_durable,
        "IsClosed": state.is_closed,
    }


def clients_json(state: ClientsState) -> list[dict[str, Any]]:
    return sorted((client_json(c) for c in state.clients.values()), key=lambda c: c["ID"])


def client_json(client: pb.ClientInfo) -> dict[str, Any]:
    return {
        "ID": client.id.decode(),
        "HbInbox": client.hb_inbox.decode(),
        "ConnID_b64": base64.b64encode(client.conn_id).decode(),
        "Protocol": client.protocol,
        "PingInterval": client.ping_interval,
        "PingMaxOut": client.ping_max_out,
    }


def server_json(info: pb.ServerInfo) -> dict[str, str]:
    return {field.json_name: getattr(info, field.name).decode() for field in pb.ServerInfo.DESCRIPTOR.fields}
