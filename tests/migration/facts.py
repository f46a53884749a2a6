"""What a golden store must become: messages and positions as the real streaming server saw them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stantools.store.ranges import Ranges


@dataclass
class ChannelFacts:
    """One channel.

    Attributes:
        messages: Sequence -> (timestamp in ns, SHA-256 of the payload, reply).
        listed: Whether all messages are listed; very long lists are cut.
        durables: (durable name, group, client) -> (last sent, pending).
    """

    messages: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    listed: bool = True
    durables: dict[tuple[str, str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)


def facts_of(expected: dict[str, Any]) -> dict[str, ChannelFacts]:
    """Reads the facts of an expected.json; of damaged stores what is intact of the original."""
    channels = expected.get("original", expected)["channels"]
    salvage = expected.get("salvage", {}).get("messages", {})
    return {name: _channel(channel, salvage.get(name)) for name, channel in channels.items()}


def _channel(channel: dict[str, Any], salvage: dict[str, Any] | None) -> ChannelFacts:
    facts = ChannelFacts(listed=not channel.get("messages_list_capped"))
    kept = None
    if salvage is not None:
        kept = Ranges.union(
            Ranges.of(salvage.get(name, []))
            for name in ("intact", "payload_intact_but_header_damaged", "intact_in_another_directory")
        )
    for message in channel["messages"]:
        if kept is None or message["seq"] in kept:
            facts.messages[message["seq"]] = message["ts"], message["sha256"], message["reply"]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for sub in channel["subscriptions"]:
        if sub["DurableName"]:
            key = sub["DurableName"], "", sub["ClientID"]
        elif sub["QGroup"] and sub["IsDurable"]:
            name, _, group = sub["QGroup"].partition(":")
            key = name, group, ""
        else:
            continue
        groups.setdefault(key, []).append(sub)
    for key, members in groups.items():
        pending = sorted({seq for member in members for seq in member["pending"]})
        facts.durables[key] = max(member["LastSent"] for member in members), tuple(pending)
    return facts
