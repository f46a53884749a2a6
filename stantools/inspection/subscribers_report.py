"""The reports of subs and of clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.overview import ChannelOverview, ClientList, Overview
from stantools.inspection.report import Report, ReportRemark, ReportTable, columns
from stantools.inspection.subscribers import SubscriberList, as_ranges, fields_json, subscription_json
from stantools.notation import counted, describe_ranges
from stantools.store.sublog import SubStatus

if TYPE_CHECKING:
    from stantools.inspection.node import NodeReport

_SUBSCRIPTIONS = columns(
    *("channel", "id", "status", "client", "durable", "group", "last sent", "lag", "pending", "in flight", "wait"),
    numbers=("id", "last sent", "lag", "in flight", "wait"),
    keys=("channel", "status", "durable", "group"),
    details=("wait", "in flight", "client", "last sent"),
)
_CLIENTS = columns(
    *("client", "registered", "subscriptions", "pending", "heartbeat inbox", "ping"),
    numbers=("subscriptions", "pending"),
    keys=("client", "registered"),
    details=("ping", "heartbeat inbox"),
)


def subscriptions_report(
    view: Overview, node: NodeReport | None, ids: Sequence[int] = (), statuses: Sequence[str] = ()
) -> Report:
    """Returns the report of the subscriptions with some ids and statuses; by default of all."""
    report = Report()
    wanted = [(channel, _chosen(channel.subscriptions, ids, statuses)) for channel in view.channels]
    channels = (_channel_json(channel, subs) for channel, subs in wanted)
    report.document = lambda: {"path": view.path, "channels": channels}
    report.objects = ({"channel": channel.name, **each.as_json()} for channel, subs in wanted for each in subs)
    names = ["channel", *subscription_json(pb.SubState(), (), SubStatus.ACTIVE), "lag"]
    flat = ({**each, "pending": " ".join(map(str, each["pending"]))} for each in report.objects)
    report.records = names, ([each[name] for name in names] for each in flat)
    if any(len(subs) for _, subs in wanted):
        report.tables.append(ReportTable(_SUBSCRIPTIONS, stream=_rows(wanted)))
    else:
        report.empty = "no subscriptions"
    for problem in view.all_problems():
        if "subs.dat: " in problem or problem.startswith("clients.dat: "):
            report.warnings.append(ReportRemark("problem", problem, "warn"))
    for channel in view.channels:
        for each in channel.subscriptions.having(SubStatus.GHOST):
            text = (
                f"{escape(channel.name)}: subscription {each.state.id} of the durable queue group "
                f"{escape(each.state.q_group)} is a ghost: the server deletes it at start"
            )
            remedy = "`stantools salvage STORE --out NEW` keeps the group and its position"
            report.warnings.append(ReportRemark("ghost", text, "warn", remedy))
    report.code = ExitCode.FINDINGS if report.warnings else ExitCode.CLEAN
    if node and node.orphans:
        text = f"{counted(node.orphans, 'message')} of members that left a queue group and not redelivered since"
        report.warnings.insert(0, ReportRemark("note", f"{text}: servers count them as acknowledged"))
    report.warnings[:0] = _elsewhere(view, node, "subscriptions", "this store")
    return report


def _elsewhere(view: Overview, node: NodeReport | None, what: str, place: str) -> Iterator[ReportRemark]:
    """Yields the note that the store of a clustered node does not have its state."""
    if not node and view.server and view.server.node_id:
        text = f"the node is clustered: its {what} are in the Raft log, not in {place}; name the node's directory"
        yield ReportRemark("note", text)


def clients_report(view: Overview, node: NodeReport | None) -> Report:
    found = ClientList(view.clients)
    for channel in view.channels:
        found.add(channel)
    clients = [
        {
            **fields_json(each.info or pb.ClientInfo(id=each.id)),
            "registered": each.info is not None,
            "subscriptions": each.subscriptions,
            "pending": each.pending,
        }
        for each in found.clients()
    ]
    names = [*fields_json(pb.ClientInfo()), "registered", "subscriptions", "pending"]
    report = Report(document=lambda: {"path": view.path, "clients": clients})
    report.records = names, (list(each.values()) for each in clients)
    rows = [
        (
            *(each[name] for name in ("id", "registered", "subscriptions", "pending", "hb_inbox")),
            f"{each['ping_interval']}s x {each['ping_max_out']}" if each["ping_interval"] else None,
        )
        for each in clients
    ]
    if rows:
        report.tables.append(ReportTable(_CLIENTS, stream=iter(rows)))
    else:
        report.empty = "no clients"
    problems = [each for each in view.problems if each.startswith("clients.dat: ")]
    report.warnings += _elsewhere(view, node, "clients", "clients.dat")
    report.warnings += [ReportRemark("problem", each, "warn") for each in problems]
    report.code = ExitCode.FINDINGS if problems else ExitCode.CLEAN
    return report


def _chosen(subs: SubscriberList, ids: Sequence[int], statuses: Sequence[str]) -> SubscriberList:
    chosen = subs.with_ids(ids) if ids else subs
    return chosen.having(*(each for each in SubStatus if each.startswith(tuple(statuses)))) if statuses else chosen


def _channel_json(channel: ChannelOverview, subs: SubscriberList) -> dict[str, Any]:
    return {
        "name": channel.name,
        "first_seq": channel.first_seq,
        "last_seq": channel.last_seq,
        "subscriptions": (each.as_json() for each in subs),
        "problems": [problem for problem in channel.problems if problem.startswith("subs.dat")],
    }


def _rows(wanted: Sequence[tuple[ChannelOverview, SubscriberList]]) -> Iterator[tuple[Any, ...]]:
    for channel, subs in wanted:
        for each in subs:
            pending = f": {describe_ranges(as_ranges(each.pending), 4)}" if each.pending else ""
            yield (
                channel.name,
                each.state.id,
                each.status.value,
                each.state.client_id,
                each.state.durable_name,
                each.state.q_group,
                each.state.last_sent,
                each.lag,
                f"{len(each.pending)}{pending}",
                each.state.max_in_flight,
                f"{each.state.ack_wait_in_secs}s",
            )
