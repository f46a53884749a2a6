"""Comparing forecasts with what the real server did (golden stores): shared by the forecast tests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from stantools.format.crc import Crc
from stantools.inspection.forecast import Forecast, OtherUser, ServerOptions
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Lookups
from stantools.store.limits import ChannelLimits, StoreLimits

_MARK = re.compile(r"\.\.\. (\d+) lines \.\.\.")


def options_of(arguments: list[str], **more: Any) -> ServerOptions:
    """The options of a server command line."""
    values: dict[str, Any] = {"store_name": "<store>", **more}
    limits: dict[str, int] = {}
    encrypt, key, crc = False, b"", Crc()
    rest = list(arguments)
    while rest:
        flag, _, value = rest.pop(0).partition("=")
        if flag == "-encrypt":
            encrypt = True
            continue
        value = value or rest.pop(0)
        if flag == "-file_crc_poly":
            crc = Crc(int(value), crc.check)
        elif flag == "-file_crc":
            crc = Crc(crc.polynomial, value == "true")
        elif flag in ("-mm", "-mb"):
            limits["max_msgs" if flag == "-mm" else "max_bytes"] = int(value)
        elif flag == "-encryption_key":
            key = value.encode()
        else:
            assert flag in ("-file_slice_max_msgs", "-file_slice_max_bytes", "-encryption_cipher", "-mc"), flag
    if encrypt:
        values["encryption_key"] = key
    return ServerOptions(crc=crc, limits=StoreLimits(channel=ChannelLimits(**limits)), **values)


STRANGER = OtherUser(65534)


def pairs(ranges: Any) -> list[list[int]]:
    return [list(pair) for pair in ranges]


def subscription_json(each: Any) -> dict[str, Any]:
    state = each.state
    return {
        "AckInbox": state.ack_inbox.decode(),
        "AckWaitInSecs": state.ack_wait_in_secs,
        "ClientID": state.client_id.decode(),
        "DurableName": state.durable_name.decode(),
        "ID": state.id,
        "Inbox": state.inbox.decode(),
        "IsClosed": state.is_closed,
        "IsDurable": state.is_durable,
        "LastSent": state.last_sent,
        "MaxInFlight": state.max_in_flight,
        "QGroup": state.q_group.decode(),
        "pending": list(each.pending),
    }


def lookups_json(lookups: Lookups, missing: list[int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "readable": pairs(lookups.readable),
        "readable_count": lookups.readable.count() + len(lookups.wrong),
    }
    if lookups.failing:
        result["lookup_errors"] = {str(seq): text for seq, text in lookups.errors.items()}
        assert lookups.failing.count() == len(lookups.errors)
    if lookups.wrong:
        result["wrong_message"] = {str(seq): got for seq, got in lookups.wrong.items()}
    if missing:
        result["missing"] = missing
    return result


def channel_json(channel: ChannelForecast, *, full: bool = True) -> dict[str, Any]:
    """A channel as expected.json has it."""
    missing = [seq for first, last in channel.missing for seq in range(first, last + 1)]
    result: dict[str, Any] = {
        "first_seq": channel.first_seq,
        "last_seq": channel.last_seq,
        "count": channel.count,
        "bytes": channel.bytes,
        **lookups_json(channel.lookups, missing),
    }
    if channel.alone is not None:
        result["without_read_ahead"] = lookups_json(channel.alone, [])
    if full:
        result["subscriptions"] = [subscription_json(each) for each in channel.subscriptions]
    else:
        result.pop("readable_count")
        result.get("without_read_ahead", {}).pop("readable_count", None)
    return result


def expected_channel(channel: dict[str, Any]) -> dict[str, Any]:
    """The same of expected.json, without what a forecast does not say."""
    result = dict(channel)
    for name in ("digest", "messages", "messages_list_capped"):
        result.pop(name, None)
    if "without_read_ahead" in result:
        result["without_read_ahead"] = {k: v for k, v in result["without_read_ahead"].items() if k != "digest"}
    if "subscriptions" in result:
        result["subscriptions"] = sorted(result["subscriptions"], key=lambda each: each["ID"])
    return result


def info_json(forecast: Forecast) -> dict[str, str]:
    info = forecast.server_info
    assert info is not None
    return {field.json_name: getattr(info, field.name).decode() for field in info.DESCRIPTOR.fields}


def sizes_json(sizes: dict[str, tuple[int | None, int | None]]) -> dict[str, dict[str, int | None]]:
    return {path: {"size_before": before, "size_after": after} for path, (before, after) in sizes.items()}


def recovery_lines(log: Iterable[str]) -> list[str]:
    """Of a whole server log, the lines of the recovery."""
    lines = [line for line in log if _MARK.fullmatch(line) or (line.startswith("[") and "STREAM: " in line)]
    begin = next((i for i, line in enumerate(lines) if "Recovering the state" in line), 0)
    end = next((i for i, line in enumerate(lines) if "Message store is" in line), len(lines))
    return lines[begin:end]


def log_differs(ours: list[str], theirs: list[str]) -> bool:
    """Compares logs; theirs may have lines left out in the middle."""
    for place, line in enumerate(theirs):
        if mark := _MARK.fullmatch(line):
            left_out = int(mark[1])
            head, tail = theirs[:place], theirs[place + 1 :]
            whole = len(ours) == len(head) + left_out + len(tail)
            return not whole or ours[:place] != head or ours[len(ours) - len(tail) :] != tail
    return ours != theirs


def replayed(channel: ChannelForecast) -> list[int]:
    return [seq for first, last in channel.delivered for seq in range(first, last + 1)]


def replay_of(expected: dict[str, Any]) -> list[int]:
    if "seqs" in expected:
        return list(expected["seqs"])
    return [seq for first, last in expected["ranges"] for seq in range(first, last + 1)]
