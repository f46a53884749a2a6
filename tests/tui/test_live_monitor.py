"""The model of a server that is watched: rates, lag, who does not move, restarts, the server gone and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import UsageError
from stantools.nats.monitoring import Address, Endpoint, GoneError, MissingError, MonitorError, TooLargeError
from tests.tui.monitored import Figures, channel, server_document, subscription, usual_figures
from tui.jobs import Job, JobState
from tui.live import facts
from tui.live.monitor import PAGE, STILL, Monitor
from tui.live.source import LENGTH, STEPS, PollInterval, RateMeter
from tui.live.sources import LiveSources

ADDRESS = Address.parse("http://host:8222")


class Scripted(Endpoint):
    """Answers from figures, without a network; `largest` entries of a list are too many."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(ADDRESS)
        self.figures = figures
        self.gone: MonitorError | None = None
        self.too_many = 10_000

    def ask(self, path: str, **query: str | int) -> dict[str, Any]:
        if self.gone is not None:
            raise self.gone
        if int(query.get("limit", 0)) > self.too_many:
            raise TooLargeError("too large", "no")
        text = "&".join(f"{name}={value}" for name, value in query.items())
        status, _, body = self.figures.answer(f"{path}?{text}")
        if status == 404:
            raise MissingError("not there", "no")
        if status != 200:
            raise MonitorError(f"HTTP {status}", "no")
        document: dict[str, Any] = json.loads(body)
        return document


class Bench:
    """A monitor with figures, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.endpoint = Scripted(self.figures)
        self.now = 1000.0
        self.monitor = Monitor(
            ADDRESS, PollInterval(), endpoint=self.endpoint, clock=lambda: self.now, wall=lambda: self.now
        )

    def ask(self, after: float = 1.0, **server: Any) -> Monitor:
        """Lets time pass, changes `serverz`, and asks."""
        self.now += after
        self.figures.server |= server
        self.monitor.ask()
        return self.monitor

    def told(self) -> list[str]:
        return [each.text for each in self.monitor.events]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_meter() -> None:
    meter = RateMeter()
    assert meter.see(10, 1.0)
    assert (meter.rate, meter.rates) == (None, [])
    assert meter.see(30, 3.0)
    assert meter.rate == 10.0
    assert not meter.see(5, 4.0)
    assert (meter.rate, meter.rates) == (None, [10.0])
    assert meter.see(6, 5.0)
    assert meter.rates == [10.0, 1.0]
    assert meter.see(None, 6.0)
    assert meter.see(100, 7.0)
    assert meter.rate is None
    assert meter.see(200, 7.0)
    assert meter.rate is None, "no time has passed"


@given(st.lists(st.tuples(st.none() | st.integers(0, 2**64), st.floats(0, 100)), max_size=200))
def test_any_counter(values: list[tuple[int | None, float]]) -> None:
    meter, at = RateMeter(), 0.0
    for value, passed in values:
        at += passed
        meter.see(value, at)
        assert meter.rate is None or meter.rate >= 0
        assert len(meter.rates) <= LENGTH


def test_rates(bench: Bench) -> None:
    monitor = bench.ask(in_msgs=100, in_bytes=1000, out_msgs=50, out_bytes=500)
    assert monitor.server is not None
    assert monitor.rates.in_messages.rate is None
    bench.ask(2.0, in_msgs=300, in_bytes=5000, out_msgs=50, out_bytes=500)
    assert monitor.rates.in_messages.rate == 100.0
    assert monitor.rates.in_bytes.rate == 2000.0
    assert monitor.rates.out_messages.rate == 0.0
    assert (monitor.problem, bench.told()) == (None, [])


def test_store_limits_and_the_nats_server(bench: Bench) -> None:
    monitor = bench.ask()
    assert monitor.store == facts.StoreFacts("FILE", 100, 1_000_000, 1_024_000_000)
    assert monitor.nats is not None
    assert (monitor.nats.version, monitor.nats.connections, monitor.nats.cpu) == ("2.9.24", 6, 1.5)
    # They are not asked for in every round; a server that stands on another one has no varz.
    bench.figures.nats = None
    for _ in range(5):
        bench.ask()
    assert monitor.nats is None
    assert sum("storez" in each for each in bench.figures.asked) == 2


def test_counters_that_go_back_are_a_restart(bench: Bench) -> None:
    usual_figures(bench.figures)
    monitor = bench.ask(in_msgs=100)
    bench.ask(in_msgs=200)
    bench.ask(in_msgs=7)
    assert bench.told() == ["the server counts from zero again: it was restarted"]
    assert monitor.rates.in_messages.rate is None
    assert monitor.rates.in_messages.rates == [100.0]
    bench.ask(in_msgs=9)
    assert monitor.rates.in_messages.rate == 2.0
    assert len(bench.told()) == 1


def test_another_start_time_is_a_restart(bench: Bench) -> None:
    monitor = bench.ask(in_msgs=100)
    bench.ask(in_msgs=200, start_time="2026-11-21T00:00:00Z", server_id="other")
    assert bench.told() == ["the server was restarted"]
    assert monitor.rates.in_messages.rate is None


def test_another_cluster_answers(bench: Bench) -> None:
    bench.ask()
    bench.ask(cluster_id="prod", server_id="other")
    assert bench.told() == ["another server answers now"]


def test_the_state_changes(bench: Bench) -> None:
    """A standby of a fault tolerance group becomes the active server; it had no cluster id before."""
    bench.ask(state="FT_STANDBY", cluster_id="", channels=0)
    bench.ask(state="FT_ACTIVE", cluster_id="test-cluster")
    assert bench.told() == ["the server is FT_ACTIVE now"]
    bench.ask(state="FAILED")
    assert bench.monitor.events[-1].bad


def test_a_cluster(bench: Bench) -> None:
    monitor = bench.ask(state="CLUSTERED", role="Follower", node_id="a")
    assert monitor.server is not None
    assert (monitor.server.role, monitor.server.node_id) == ("Follower", "a")
    bench.ask(role="Leader")
    assert bench.told() == ["the server is CLUSTERED Leader now"]


def test_channels(bench: Bench) -> None:
    usual_figures(bench.figures)
    monitor = bench.ask()
    assert list(monitor.channels) == ["alerts", "audit.[bold]\x1b[31m", "orders"]
    assert list(monitor.clients) == ["app-1", "app-2", "app-3"]
    orders = monitor.channels["orders"]
    assert (orders.stalled, orders.pending, orders.state) == (1, 9, "stalled")
    lags = {each.facts.name + each.facts.client_id: each.lag for each in orders.subscriptions}
    # Messages that limits have removed are not waited for; a group is where its furthest member is.
    assert lags == {
        "auditapp-1": 1000,
        "_INBOX.app-1.plainapp-1": 0,
        "nightlyapp-2": 1000,
        "workers:groupapp-2": 2,
        "workers:groupapp-3": 2,
    }
    assert orders.lag == 1000
    assert monitor.channels["alerts"].state == "ok"


def test_the_rate_of_a_channel(bench: Bench) -> None:
    bench.figures.channels = [channel("a", 10)]
    monitor = bench.ask()
    bench.figures.channels = [channel("a", 30)]
    bench.ask(2.0)
    assert monitor.channels["a"].meter.rate == 10.0
    # Deleted and made again.
    bench.figures.channels = [channel("a", 3)]
    bench.ask()
    assert monitor.channels["a"].meter.rate is None


def test_who_does_not_move(bench: Bench) -> None:
    def at(sent: int, pending: int, last: int = 6, **more: Any) -> str:
        bench.figures.channels = [
            channel("a", last, subscription("c", "d", last_sent=sent, pending_count=pending, **more))
        ]
        bench.ask(STILL / 2)
        return bench.monitor.channels["a"].subscriptions[0].state

    assert [at(5, 5), at(5, 5), at(5, 5)] == ["ok", "ok", "not moving"]
    assert bench.monitor.channels["a"].state == "not moving"
    assert bench.monitor.channels["a"].subscriptions[0].still == STILL
    # An acknowledgement is a movement, and so is a delivery.
    assert [at(5, 4), at(5, 4), at(5, 4)] == ["ok", "ok", "not moving"]
    assert [at(6, 4), at(6, 4), at(6, 4)] == ["ok", "ok", "not moving"]
    # Nothing is expected of one that has nothing to acknowledge, or is not there.
    assert [at(6, 0), at(6, 0), at(6, 0)] == ["ok"] * 3
    assert [at(5, 4, is_offline=True) for _ in range(3)] == ["offline"] * 3
    assert bench.monitor.channels["a"].state == "behind"
    assert at(6, 4, is_stalled=True) == "stalled"
    # The server goes on to send as long as there is something, unless it cannot read it.
    assert [at(6, 0, last=9), at(6, 0, last=10), at(6, 0, last=11)] == ["ok", "ok", "not moving"]
    assert [at(6, 0, last=9, queue_name="g"), *(at(6, 0, last=10, queue_name="g") for _ in range(3))] == ["ok"] * 4


def test_subscriptions_without_an_inbox_of_their_own(bench: Bench) -> None:
    """After a restart the shadow of a group has neither client nor inboxes; two of them are still two."""
    shadow = subscription("", inbox="", ack_inbox="", queue_name="w:g", is_offline=True, is_durable=True)
    bench.figures.channels = [channel("a", 10, shadow, dict(shadow))]
    for _ in range(3):
        monitor = bench.ask()
        assert len(monitor.channels["a"].subscriptions) == 2


def test_pages(bench: Bench) -> None:
    bench.figures.channels = [channel(f"c{n:05}", n) for n in range(PAGE * 2 + 3)]
    bench.figures.clients = [{"id": f"client{n:05}", "hb_inbox": "x", "subs_count": 0} for n in range(PAGE + 1)]
    monitor = bench.ask()
    assert len(monitor.channels) == PAGE * 2 + 3
    assert len(monitor.clients) == PAGE + 1
    assert sum("channelsz" in each for each in bench.figures.asked) == 3


def test_a_channel_that_slips_through_while_pages_are_turned(bench: Bench) -> None:
    bench.figures.channels = [channel(f"c{n:05}", n) for n in range(PAGE + 10)]
    monitor = bench.ask()
    gone = bench.figures.channels.pop(3)
    bench.ask()
    assert gone["name"] in monitor.channels
    assert list(monitor.channels) == sorted(monitor.channels)
    bench.ask()
    assert gone["name"] not in monitor.channels


def test_answers_that_are_too_large_are_asked_for_in_smaller_parts(bench: Bench) -> None:
    bench.figures.channels = [channel(f"c{n}", n) for n in range(50)]
    bench.endpoint.too_many = 10
    assert len(bench.ask().channels) == 50
    bench.endpoint.too_many = 0
    assert bench.ask().problem is not None


def test_gone_and_back(bench: Bench) -> None:
    usual_figures(bench.figures)
    monitor = bench.ask()
    bench.endpoint.gone = GoneError("nothing is listening there", "start it")
    bench.ask()
    bench.ask(10.0)
    assert monitor.problem is not None
    assert monitor.age == 11.0
    assert len(monitor.channels) == 3, "the last figures are kept"
    bench.endpoint.gone = None
    bench.ask()
    assert monitor.problem is None
    assert bench.told() == ["the server does not answer: nothing is listening there", "the server answers again"]


def test_back_after_a_restart(bench: Bench) -> None:
    bench.ask()
    bench.endpoint.gone = GoneError("nothing is listening there", "start it")
    bench.ask()
    bench.endpoint.gone = None
    bench.ask(server_id="new", start_time="later", in_msgs=0)
    assert bench.told()[1:] == ["the server was restarted"]


def test_it_never_answered(bench: Bench) -> None:
    bench.endpoint.gone = GoneError("nothing is listening there", "start it")
    assert bench.ask().problem is not None
    bench.endpoint.gone = None
    bench.ask()
    assert bench.told() == []


def test_a_nats_server_without_streaming(bench: Bench) -> None:
    bench.figures.instead["/streaming/serverz"] = 404, "", b""
    problem = bench.ask().problem
    assert problem is not None
    assert "without NATS Streaming" in problem.message
    assert "--server" in problem.remedy
    bench.figures.nats = None
    assert bench.ask().problem is not None


def test_something_else_that_answers_in_json(bench: Bench) -> None:
    bench.figures.server = {"status": "ok"}
    bench.figures.instead["/streaming/serverz"] = 200, "", b'{"status": "ok"}'
    problem = bench.monitor.ask() or bench.monitor.problem
    assert problem is not None
    assert "does not describe a NATS Streaming server" in problem.message


def test_an_old_server_that_says_little(bench: Bench) -> None:
    bench.figures.instead["/streaming/serverz"] = 200, "", json.dumps({"cluster_id": "old", "state": "?"}).encode()
    bench.figures.instead["/streaming/storez"] = 404, "", b""
    bench.figures.instead["/streaming/channelsz"] = 200, "", b'{"names": ["a", "b", 7], "total": 3}'
    monitor = bench.ask()
    assert monitor.problem is None
    assert monitor.server is not None
    assert (monitor.server.version, monitor.server.in_messages) == ("", None)
    assert list(monitor.channels) == ["a", "b"]
    bench.ask()
    assert monitor.rates.in_messages.rate is None
    assert bench.told() == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _strange(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Documents with the members of one, some of them missing, some of another kind."""
    members = {name: st.just(value) | _JSON for name, value in document.items()}
    return st.fixed_dictionaries({}, optional=members)


@given(
    _strange(server_document(role="Leader", node_id="a")),
    st.lists(_strange(channel("a", 5, subscription("c", "d")) | {"x": 1}) | _JSON, max_size=4) | _JSON,
    st.lists(_strange(subscription("c", "d", queue_name="q")) | _JSON, max_size=3) | _JSON,
    _JSON,
)
def test_any_document(server: dict[str, Any], channels: Any, subscriptions: Any, other: Any) -> None:
    bench = Bench()
    for each in channels if isinstance(channels, list) else ():
        if isinstance(each, dict):
            each["subscriptions"] = subscriptions
    pages = {"channels": channels, "clients": other, "total": other}
    replies: dict[str, Any] = {"serverz": server, "storez": {"limits": other}, "channelsz": pages, "clientsz": pages}
    for name, document in replies.items():
        bench.figures.instead[f"/streaming/{name}"] = 200, "", json.dumps(document).encode()
    for _ in range(3):
        monitor = bench.ask()
    assert (monitor.problem is None) == bool({"cluster_id", "state", "total_msgs"} & server.keys())
    for watched in monitor.channels.values():
        assert watched.lag >= 0
        assert watched.state in ("stalled", "not moving", "behind", "ok")


def test_the_pace() -> None:
    pace = PollInterval()
    assert pace.seconds == 1.0
    for _ in range(20):
        pace.slower()
    assert pace.seconds == STEPS[-1]
    for _ in range(20):
        pace.faster()
    assert pace.seconds == STEPS[0]
    assert pace.left(0.1) == pytest.approx(0.1)
    assert pace.left(0.1, minimum=3.0) == pytest.approx(2.9)
    pace.toggle_pause()
    assert pace.left(1e9) > 0


def _ended(job: Job[None]) -> bool:
    return job.wait(20)


def test_a_monitor_as_a_job(bench: Bench) -> None:
    job = Job("monitor", bench.monitor.run).start()
    while bench.monitor.revision < 2:
        assert job.running
    job.cancel()
    assert _ended(job)
    assert job.state is JobState.CANCELLED


def test_one_job_at_a_time_fills_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []

    def run(self: Monitor, job: Job[None]) -> None:
        running.append(1)
        assert len(running) == 1
        try:
            while True:
                job.check()
        finally:
            running.clear()

    monkeypatch.setattr(Monitor, "run", run)
    watching = LiveSources("http://host:8222", None)
    (source,) = watching.sources
    first, second = source.job(), source.job()
    first.start()
    while not running:
        assert first.running
    second.start()
    assert not second.wait(0.3)
    first.cancel()
    assert _ended(first)
    while not running:
        assert second.running
    second.cancel()
    assert _ended(second)


def test_a_bad_url() -> None:
    with pytest.raises(UsageError):
        LiveSources("nats://host", None)
