"""Plans for a broker that goes on with a store: what they say, what is in their way, what its state holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stantools.errors import ExitCode, UsageError
from stantools.format.proto import store_pb2 as pb
from stantools.migration.broker_state_stream import find_obstacles
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import MigrationPlan, TargetRef
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planfile import read_plan, write_plan
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import prepare
from stantools.migration.source import StoreSource, open_source
from stantools.nats.channel_streams import MADE, StreamNames, decode_members
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.serverinfo import new_server_info
from tests.migration.test_migrate import run

ID = "test-cluster"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample") / "store"
    write_sample(root, SampleOptions(names=["orders", "Orders", "a.b_c"], messages=40, size=30, seed=2))
    return root


def planned(root: Path, plan_options: PlanOptions | None = None) -> tuple[MigrationPlan, StoreSource]:
    plan_options = plan_options or PlanOptions(for_broker=ID, replicas=3)
    source = open_source(open_datastore(root), plan_options.source_options())
    return make_plan(source, plan_options.settled(TargetRef(), plan_options.all_overrides(), decrypted=False)), source


def test_the_streams_are_those_of_the_broker(store: Path, tmp_path: Path) -> None:
    plan, source = planned(store)
    names = StreamNames(ID, 3)
    assert [stream.config for stream in plan.streams] == [
        names.channel_config(channel.raw_name, UNLIMITED)
        for channel in sorted(source.channels, key=lambda each: names.stream(each.raw_name))
    ]
    assert not list(find_obstacles(plan, source))
    assert not plan.consumers and not [left for left in plan.left_out if left.what in ("client", "subscription")]
    write_plan(tmp_path / "p.yaml", plan)
    again = read_plan(tmp_path / "p.yaml")
    assert (again.broker, again.digest) == (ID, plan.digest)
    assert prepare(plan, source)[-1].plan.config == names.state_config()


def test_the_state(store: Path) -> None:
    """Who the server is, clients, channels, and each subscription as it is stored; a queue group is one record."""
    plan, source = planned(store)
    state = prepare(plan, source)[-1].source
    records = {batch.subject.removeprefix(b"_stanjs.test-cluster."): batch.data(0) for batch in state.read()}
    assert state.count == state.last == len(records)
    assert [batch.subject for batch in state.read(after=1, until=3)] == [
        b"_stanjs.test-cluster." + subject for subject in list(records)[1:3]
    ]
    assert pb.ServerInfo.FromString(records.pop(b"server")) == source.plan.server
    for client in source.plan.clients:
        assert pb.ClientInfo.FromString(records.pop(b"client." + client.id)) == client
    for channel in source.channels:
        assert records.pop(b"chan." + channel.raw_name) == MADE
        prefix = b"sub." + channel.raw_name + b"."
        units = [decode_members(records.pop(each)) for each in list(records) if each.startswith(prefix)]
        assert all(len({member.state.q_group for member in members}) == 1 for members in units)
        groups = [members[0].state.q_group for members in units if members[0].state.q_group]
        assert len(set(groups)) == len(groups)
        found = {member.state.id: member for members in units for member in members}
        assert {each: found[each].pending for each in found} == {
            each.state.id: each.pending for each in channel.subscriptions
        }
        for each in channel.subscriptions:
            there = found[each.state.id].state
            assert there.last_sent >= each.state.last_sent
            assert replaced(there) == replaced(each.state)
    assert not records


def replaced(state: pb.SubState) -> pb.SubState:
    """Without the one field in which all members of a group are alike."""
    copy = pb.SubState()
    copy.CopyFrom(state)
    copy.last_sent = 0
    return copy


def obstacles(plan: MigrationPlan, source: StoreSource) -> str:
    return "; ".join(note.text for note in find_obstacles(plan, source))


def test_what_is_in_the_way(store: Path, tmp_path: Path) -> None:
    plan, source = planned(store)
    assert "published messages" in obstacles(replace(plan, way=LoadMethod.PUBLISH), source)
    renamed = replace(plan.streams[0], name="other")
    assert "the broker holds channel" in obstacles(replace(plan, streams=(renamed, *plan.streams[1:])), source)
    other, _ = planned(store, PlanOptions(for_broker="other"))
    assert f"belongs to cluster ID '{ID}'" in obstacles(other, source)
    write_sample(tmp_path / "gaps", SampleOptions(names=["a", "gaps"], messages=200, size=30, gaps=True))
    gaps, of_gaps = planned(tmp_path / "gaps")
    assert "missing, but a broker's streams must not have gaps" in obstacles(gaps, of_gaps)
    assert not obstacles(*planned(tmp_path / "gaps", PlanOptions(for_broker=ID, channels=("a",))))


def test_a_lost_server_file(store: Path, tmp_path: Path) -> None:
    """The cluster id that is given counts, and clients find the server under it."""
    root = tmp_path / "store"
    write_sample(root, SampleOptions(names=["a"], messages=4))
    (root / "server.dat").unlink()
    plan, source = planned(root)
    assert not obstacles(plan, source)
    assert source.plan.server == new_server_info(ID)
    assert any("server.dat" in note.text for note in plan.notes)


def test_what_the_broker_decides() -> None:
    rows: list[dict[str, object]] = [
        {"via": "publish"},
        {"stream_prefix": "x"},
        {"consumers": "push"},
        {"storage": "memory"},
        {"maps": (">=ALL",)},
    ]
    for more in rows:
        planning = PlanOptions(for_broker=ID, **more)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="--for-broker"):
            planning.settled(TargetRef(), planning.all_overrides(), decrypted=False)
            pytest.fail(f"accepted: {more!r}")


def test_as_backups(store: Path, tmp_path: Path) -> None:
    """Without a server: all streams as backups, the state's as well, proven by another look."""
    words = ("migrate", store, "--for-broker", ID, "--out", "there", "--yes")
    run(tmp_path / "work", *words)
    there = {path.name for path in (tmp_path / "work" / "there").iterdir()}
    assert there == {
        StreamNames(ID).state,
        *(StreamNames(ID).stream(name) for name in (b"orders", b"Orders", b"a.b_c")),
    }
    (plan,) = (tmp_path / "work").glob("*.yaml")
    assert run(tmp_path / "work", "migrate", "verify", plan).stdout.count("compared") >= 4
    assert "cannot be followed" in run(tmp_path / "work", *words[:4], "--follow", expect=ExitCode.USAGE).stderr
    appended = run(tmp_path / "work", *words, "--append-missing", expect=ExitCode.REFUSED)
    assert "after the messages that the broker stored" in appended.stdout
