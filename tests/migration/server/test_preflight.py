"""What is in the way of streams: found before anything is created, and the same that the server would say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.plan.migration_plan import RemarkLevel
from stantools.migration.server.demands import (
    Problem,
    StreamDemand,
    account_problems,
    refused,
)
from stantools.migration.server.preflight import StreamAccess, preflight
from stantools.migration.server.restore import restore
from stantools.nats.errors import ApiError, NatsError
from stantools.nats.jetstream import JetStream
from stantools.streamfiles.stream_config import unknown_options
from tests import servers
from tests.conftest import EACH_VERSION, others_slow
from tests.migration.server.archives import Archive, build
from tests.nats.authority import Operator
from tests.natsclient import jetstream

INBOX = {"subscribe": ["_INBOX.>"]}


def demand(name: str = "ORDERS", subject: str = "orders", **more: Any) -> StreamDemand:
    names = {field.name for field in dataclasses.fields(StreamDemand)}
    config = {key: value for key, value in more.items() if key not in names}
    rest = {key: value for key, value in more.items() if key in names}
    return StreamDemand({"name": name, "subjects": [subject], "storage": "file", **config}, **rest)


async def look(
    server: Any, *demands: StreamDemand, access: StreamAccess = StreamAccess.RESTORE, **options: Any
) -> list[Problem]:
    async with jetstream(server.url, **options) as js:
        return await preflight(js, demands, access)


def codes(problems: list[Problem]) -> list[str]:
    assert all(problem.detail and problem.remedy for problem in problems)
    return [problem.code for problem in problems]


def account(**limits: Any) -> dict[str, Any]:
    """Configuration of a server whose one user has an account with limits."""
    jetstream = {"max_mem": 1 << 20, "max_file": 1 << 20, **limits}
    return {"accounts": {"A": {"jetstream": jetstream, "users": [{"user": "a", "password": "p"}]}}}


LOGIN = {"user": "a", "password": "p"}


async def attempt(server: Any, archive: Archive, **login: Any) -> str:
    """Restores an archive and gives back what the server has against it."""

    async with jetstream(server.url, **login) as js:
        try:
            await restore(js, archive.name, archive.config, archive.state, archive.parts())
        except NatsError as problem:
            return problem.message
        await js.delete_stream(archive.name)
        return ""


async def test_nothing_stands_in_the_way(each_server: Any) -> None:
    assert await look(each_server, demand(consumers=({"durable_name": "d"},))) == []
    assert await look(each_server, demand(), access=StreamAccess.PUBLISH) == []
    assert await look(each_server) == []


async def test_creates_nothing(start_server: Callable[..., Any]) -> None:
    server = start_server()
    await look(server, demand(), demand("B", "b", consumers=({"durable_name": "d"},)), access=StreamAccess.PUBLISH)
    async with jetstream(server.url) as js:
        assert await js.stream_names() == []


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
async def test_jetstream_is_off(start_server: Callable[..., Any], version: str) -> None:
    assert codes(await look(start_server(version, jetstream=False), demand())) == ["jetstream-off"]
    config = {"accounts": {"A": {"users": [{"user": "a", "password": "p"}]}, "B": {"jetstream": True}}}
    [problem] = await look(start_server(version, config), demand(), **LOGIN)
    assert (problem.code, problem.level) == ("jetstream-off", RemarkLevel.PROBLEM)
    assert "not enabled for account" in problem.detail


async def test_streams_and_subjects_that_are_there(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        await js.create_stream({"name": "ORDERS", "subjects": ["orders"]})
        await js.create_stream({"name": "WIDE", "subjects": ["wide.*.>"]})
    found = await look(server, demand(), demand("NEW", "wide.a.b"), demand("FINE", "wide.a"))
    assert [(problem.code, problem.stream) for problem in found] == [
        ("stream-exists", "ORDERS"),
        ("subject-taken", "NEW"),
    ]
    assert "with 0 messages up to 0" in found[0].detail
    assert "stream WIDE" in found[1].detail
    assert await look(server, demand(may_exist=True)) == []
    # What is to be replaced does not are in the way of others either.
    assert await look(server, demand(may_exist=True), demand("OTHER", "orders.new")) == []


async def test_subjects_of_two_new_streams(start_server: Callable[..., Any]) -> None:
    server = start_server()
    found = await look(server, demand("A", "x.y"), demand("B", "x.*"), demand("C", "x.y"), demand("D", "y"))
    assert [(problem.code, problem.stream) for problem in found] == [
        ("subject-taken", "B"),
        ("subject-taken", "C"),
        ("subject-taken", "C"),
    ]


async def test_subjects_that_servers_refuse(each_server: Any) -> None:
    version = tuple(map(int, each_server.version.split(".")))
    assert refused(">", version)
    if version >= (2, 10, 0):  # older ones take it, and then whatever is said on the server
        assert await attempt(each_server, build(subject=">"))
    for subject in ("$JS.API.foo", "$JS.foo", "$JSC.foo", "$SYS.foo", "$JS", "$KV.a", "_INBOX.a", "*.foo", "a b"):
        reason = refused(subject, version)
        said = await attempt(each_server, build(subject=subject))
        assert bool(reason) == bool(said), (subject, reason, said)
    found = await look(each_server, demand(subject="$JS.API.foo"))
    assert codes(found) == ["subject-refused"]


async def test_limits_of_the_account(start_server: Callable[..., Any]) -> None:
    server = start_server(config=account(max_file=100_000, max_streams=2, max_consumers=2, max_ack_pending=1000))
    two = demand("A", "a", bytes=40_000), demand("B", "b", bytes=50_000)
    assert await look(server, *two, **LOGIN) == []
    assert codes(await look(server, *two, demand("C", "c"), **LOGIN)) == ["too-many-streams"]
    [problem] = await look(server, *two[:1], demand("B", "b", bytes=70_000), **LOGIN)
    assert problem.code == "storage"
    assert "may use 100000 bytes of storage and uses 0; 110000 more are needed" in problem.detail
    assert codes(await look(server, demand(max_bytes=200_000), **LOGIN)) == ["storage"]
    three = tuple({"durable_name": name} for name in "abc")
    assert codes(await look(server, demand(consumers=three), **LOGIN)) == ["too-many-consumers"]
    assert "maximum consumers limit" in await attempt(server, build(consumers=("a", "b", "c")), **LOGIN)
    [problem] = await look(server, demand(consumers=({"durable_name": "d", "max_ack_pending": 1001},)), **LOGIN)
    assert problem.code == "max-ack-pending"
    assert "consumer d has max_ack_pending 1001" in problem.detail
    assert not await attempt(server, build(consumers=("d",)), **LOGIN)
    tight = start_server(config=account(max_ack_pending=999))
    assert "max ack pending exceeds" in await attempt(tight, build(consumers=("d",)), **LOGIN)


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], {servers.NEWEST}))
@pytest.mark.parametrize("required", [True, False])
async def test_max_bytes_of_a_stream(start_server: Callable[..., Any], version: str, required: bool) -> None:
    limits = {"max_bytes_required": True} if required else {"disk_max_stream_bytes": 20_000}
    server = start_server(version, account(**limits))
    for max_bytes, wrong in (
        (-1, "max-bytes-required" if required else ""),
        (15_000, ""),
        (50_000, "" if required else "max-bytes-too-large"),
    ):
        assert codes(await look(server, demand(max_bytes=max_bytes), **LOGIN)) == ([wrong] if wrong else [])
        assert bool(await attempt(server, build(max_bytes=max_bytes), **LOGIN)) == bool(wrong)


async def test_tiers(start_server: Callable[..., Any], tmp_path: Path) -> None:
    tier = {"mem_storage": 0, "disk_storage": 50_000, "streams": 1, "consumer": -1}
    operator = Operator({"tiered_limits": {"R1": tier}})
    server = start_server(config=operator.config())
    login = {"creds": operator.write_user(tmp_path / "user.creds")}
    assert await look(server, demand(bytes=40_000), **login) == []
    assert codes(await look(server, demand(bytes=60_000), **login)) == ["storage"]
    assert codes(await look(server, demand(), demand("B", "b"), **login)) == ["too-many-streams"]
    found = await look(server, demand(num_replicas=3), **login)
    assert codes(found) == ["replicas", "replicas"]
    assert "only R1" in found[0].detail


def test_replicas_count_without_tiers_only() -> None:
    limits = {"limits": {"max_storage": 250, "max_streams": -1}, "storage": 50, "streams": 0}
    wanted = [demand(bytes=70, num_replicas=3)]
    assert codes(account_problems(limits, wanted, {})) == ["storage"]
    assert account_problems(limits, [demand(bytes=66, num_replicas=3)], {}) == []
    assert account_problems({"tiers": {"R3": limits}}, wanted, {}) == []
    there = {"ORDERS": {"state": {"bytes": 20}, "config": {"max_bytes": -1}}}
    assert account_problems(limits, wanted, there) == []


def test_storage_in_memory_is_its_own() -> None:
    limits = {"limits": {"max_storage": 10, "max_memory": 100}, "storage": 0, "memory": 0}
    assert account_problems(limits, [demand(bytes=70, storage="memory")], {}) == []
    assert codes(account_problems(limits, [demand(bytes=170, storage="memory")], {})) == ["memory"]


async def test_what_a_single_server_cannot(start_server: Callable[..., Any]) -> None:
    server = start_server(config={"max_payload": 1000})
    assert codes(await look(server, demand(num_replicas=3))) == ["replicas"]
    assert codes(await look(server, demand(storage="memory"))) == ["memory"]
    assert await look(server, demand(storage="memory"), access=StreamAccess.PUBLISH) == []
    [large] = await look(server, demand(largest_message=1001))
    assert (large.code, large.level) == ("message-too-large", RemarkLevel.WARNING)
    [large] = await look(server, demand(largest_message=1001), access=StreamAccess.PUBLISH)
    assert (large.code, large.level) == ("message-too-large", RemarkLevel.PROBLEM)
    assert codes(await look(server, demand(largest_message=900, max_msg_size=800))) == ["message-too-large"]
    assert await look(server, demand(largest_message=800, max_msg_size=800)) == []


async def test_options_that_a_version_does_not_know(start_server: Callable[..., Any]) -> None:
    found = await look(start_server(servers.OLDEST), demand(metadata={"a": "b"}, compression="s2", allow_direct=True))
    assert [problem.detail.split(",")[0] for problem in found] == [
        "the server does not know the option metadata",
        "the server does not know the option compression",
    ]
    assert unknown_options({"allow_atomic": True, "metadata": {}}, (2, 11, 0)) == [("allow_atomic", "2.12")]
    assert unknown_options({"allow_batched": True}, (0, 0, 0)) == []


async def test_permissions(start_server: Callable[..., Any]) -> None:
    def user(name: str, *publish: str) -> dict[str, Any]:
        return {"user": name, "password": "p", "permissions": {"publish": list(publish), **INBOX}}

    least = ("$JS.API.STREAM.RESTORE.*", "$JS.SNAPSHOT.RESTORE.*.*")
    users = [
        user("all", "$JS.>"),
        user("least", *least),
        user("half", "$JS.API.STREAM.RESTORE.*"),
        user("none", "$JS.API.INFO"),
        user("publisher", "$JS.API.>", "orders"),
    ]
    server = start_server(config={"authorization": {"users": users}})
    assert await look(server, demand(), user="all", password="p") == []
    found = await look(server, demand(), user="least", password="p")
    assert {problem.level for problem in found} == {RemarkLevel.WARNING}
    assert codes(found) == ["cannot-ask", "cannot-ask", "no-permission", "no-permission"]
    found = await look(server, demand(), user="half", password="p")
    assert (found[0].code, found[0].level) == ("no-permission", RemarkLevel.PROBLEM)
    assert "$JS.SNAPSHOT.RESTORE.ORDERS." in found[0].detail
    found = await look(server, demand(), user="none", password="p")
    assert "the user none may not publish to $JS.API.STREAM.RESTORE.ORDERS" in found[0].detail
    assert await look(server, demand(), user="publisher", password="p", access=StreamAccess.PUBLISH) == []
    assert codes(await look(server, demand(), user="publisher", password="p")) == ["no-permission"]


class Fake:
    """A connection to a server that says it has another version."""

    def __init__(self, connection: Any, version: str) -> None:
        self._connection = connection
        self.info = {**connection.info, "version": version}
        self.version = type(connection).version.fget(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.16.0", ["version-untried"]),
        ("3.0.0-RC.1", ["version-untried"]),
        ("2.15.9", []),
        ("2.8.4", ["version-untried"]),
        ("2.1.9", ["version-too-old"]),
        ("dev", ["version-unknown"]),
    ],
)
async def test_versions(start_server: Callable[..., Any], version: str, expected: list[str]) -> None:
    async with jetstream(start_server().url) as js:
        problems = await preflight(JetStream(Fake(js.connection, version)), [])  # type: ignore[arg-type]
    assert codes(problems) == expected


async def test_in_a_cluster(tmp_path: Path) -> None:
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip("no server")
    async with servers.Cluster(tmp_path) as cluster:
        assert await look(cluster.servers[0], demand(num_replicas=3)) == []
        assert [(each.code, each.level) for each in await look(cluster.servers[0], demand(num_replicas=5))] == [
            ("replicas", RemarkLevel.WARNING)
        ]


async def test_api_errors_have_their_number(start_server: Callable[..., Any]) -> None:
    server = start_server()

    async with jetstream(server.url) as js:
        await js.create_stream({"name": "A", "subjects": ["a"]})
        with pytest.raises(ApiError, match=r"refused STREAM.CREATE.B: subjects overlap .*\(error 400/10065\)") as no:
            await js.create_stream({"name": "B", "subjects": ["a"]})
        assert (no.value.code, no.value.err_code, no.value.operation) == (400, 10065, "STREAM.CREATE.B")
        assert "prefix" in no.value.remedy


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_room_of_the_server(version: str, start_server: Callable[..., Any], tmp_path: Path) -> None:
    """What a server may store is asked for without making anything, and is what it refuses for itself."""
    config = {"jetstream": {"store_dir": str(tmp_path / "js"), "max_file": 10 << 20, "max_mem": 1 << 20}}
    server = start_server(version, config)
    mebi = 1 << 20
    assert await look(server, demand(bytes=9 * mebi, least_bytes=9 * mebi)) == []
    [problem] = await look(
        server, demand("A", "a", bytes=6 * mebi, least_bytes=6 * mebi), demand("B", "b", bytes=5 * mebi)
    )
    assert (problem.code, problem.level) == ("storage", RemarkLevel.WARNING)  # it may be less than that
    two = demand("A", "a", bytes=6 * mebi, least_bytes=6 * mebi), demand("B", "b", bytes=6 * mebi, least_bytes=5 * mebi)
    [problem] = await look(server, *two)
    assert (problem.code, problem.level) == ("storage", RemarkLevel.PROBLEM)
    room = int(problem.detail.split("about ")[1].split(" bytes")[0])
    assert 10 * mebi - mebi // 8 <= room <= 10 * mebi
    [problem] = await look(
        server, demand(storage="memory", bytes=2 * mebi, least_bytes=2 * mebi), access=StreamAccess.PUBLISH
    )
    assert (problem.code, problem.remedy.split(" in ")[0]) == ("memory", "raise max_mem")
    # What is there is in the way: reserved, or, as far as the server tells, just stored.
    seven = demand("SEVEN", "seven", bytes=7 * mebi, least_bytes=7 * mebi)
    assert await look(server, seven) == []
    await fill(server, "STORED", {}, 4 * mebi)
    assert codes(await look(server, seven)) == ([] if version == servers.OLDEST else ["storage"])
    await fill(server, "RESERVED", {"max_bytes": 4 * mebi}, 0)
    assert codes(await look(server, seven)) == ["storage"]


def test_what_2_10_tells_as_reserved() -> None:
    """One stream without max_bytes, and an account with a limit."""
    there = {"storage": 1000, "reserved_storage": (1 << 64) - 1, "streams": 1, "limits": {"max_storage": 10_000}}
    assert account_problems(there, [demand(bytes=5000)], {}) == []
    assert codes(account_problems(there, [demand(bytes=9500)], {})) == ["storage"]


async def fill(server: Any, name: str, config: dict[str, Any], size: int) -> None:
    """Makes a stream, the only ones that are there were made so, and publishes some bytes to it."""

    async with jetstream(server.url) as js:
        before = await js.stream_names()
        assert set(before) <= {"STORED"}
        await js.create_stream({"name": name, "subjects": [name], **config})
        for _ in range(size // 100_000):
            js.connection.publish(name.encode(), bytes(100_000))
            await js.connection.drain()
        await js.connection.flush()
        state = (await js.stream_info(name) or {})["state"]
        while state["messages"] < size // 100_000:
            state = (await js.stream_info(name) or {})["state"]
