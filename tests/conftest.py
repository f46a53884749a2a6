"""Shared fixtures: golden stores, real servers."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import goldenstores, servers

# The same examples in every run, on fast machines and on busy ones: what is found by chance belongs to whoever looks
# for it. `STANTOOLS_EXPLORE=1 make test` does.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=not os.environ.get("STANTOOLS_EXPLORE"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
# Tests start Python a thousand times: what is compiled is kept, also where the environment says otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Whoever runs the tests in the background of a script ignores Ctrl-C, and so would all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests of the browser wait for pictures: they come sooner.
os.environ.setdefault("TEXTUAL_FPS", "240")
#: Tests with generated examples try one of so many of them; all in a slow test (`tests/test_examples.py`).
ALL_EXAMPLES = "STANTOOLS_ALL_EXAMPLES"
SHARE = 1 if os.environ.get(ALL_EXAMPLES) or os.environ.get("STANTOOLS_EXPLORE") else 5
FEWEST = 20


#: Seconds that a test may take, far more than one needs on a busy machine: it hangs.
MOST_SECONDS, MOST_SECONDS_SLOW = 600, 1800


#: Modules by which a test starts processes that it then talks to.
STARTERS = {"tests.servers", "tests.brokers"}
#: Fixtures by which a test gets golden stores; tests that get them in other ways say it themselves.
GOLDEN_FIXTURES = {"golden", "golden_copy", "golden_clusters", "golden_jetstream", "golden_sql"}


@cache
def starts_processes(module: ModuleType | None) -> bool:
    """Whether a module uses one of `STARTERS`."""
    names = vars(module).values() if module else ()
    return not STARTERS.isdisjoint(
        getattr(each, "__module__", None) or getattr(each, "__name__", None) for each in names
    )


def subjects(item: pytest.Item) -> Iterator[str]:
    """Yields the markers that follow from where a test is and what it uses."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if folder in ("tui", "interop"):
        yield folder
    groups = [mark.args or tuple(mark.kwargs.values()) for mark in item.iter_markers("xdist_group")]
    if ("spark",) in groups:
        yield "spark"
    fixtures = set(getattr(item, "fixturenames", ()))
    if "start_server" in fixtures or starts_processes(getattr(item, "module", None)):
        yield "server"
    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    if fixtures & GOLDEN_FIXTURES or case in (*golden_cases(), *MUTATION_SETS):
        yield "golden"


def waits(item: pytest.Item) -> int:
    """Where tests that wait for other processes stand, before those that compute (`pytest_xdist_make_scheduler`)."""
    return 0 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("server") else 2


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Marks tests by what they use; those with generated examples try fewer."""
    done: set[int] = set()
    for item in items:
        for subject in subjects(item):
            item.add_marker(subject)
        test = getattr(item, "obj", None)
        if not is_hypothesis_test(test):
            continue
        item.add_marker("generated")
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if id(test) in done or own is None or item.get_closest_marker("slow"):
            continue
        done.add(id(test))
        if own.max_examples > FEWEST:
            fewer = settings(own, max_examples=max(own.max_examples // SHARE, FEWEST))
            test._hypothesis_internal_use_settings = fewer  # type: ignore[union-attr]
    if hasattr(config, "workerinput"):
        items.sort(key=waits)


_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # not what tests write is captured to


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the process of a test that hangs, and prints where its threads are; another one goes on with the next test.

    An event loop that cannot cancel its tasks would overlook an exception.
    """
    seconds = MOST_SECONDS_SLOW if item.get_closest_marker("slow") else MOST_SECONDS
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Sends all cases of a test to one process; half of the processes take those that wait, half those that compute.

    So the processors have something to do while servers start and elect. Who has nothing left of its own half helps
    with the other one.
    """
    from xdist.scheduler import LoadGroupScheduling

    class FromBothEnds(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # One case at a time, ten thousand keep the process that sends them busy.
            return super()._split_scope(nodeid).partition("[")[0]

        def _assign_work_unit(self, node: Any) -> None:
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            super()._reschedule(node)
            # A process begins a test when it knows the next one, or that there is none.
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forgets what is done, which is otherwise counted again after every test."""
            scope = self._split_scope(self.registered_collections[node][item_index])
            super().mark_test_complete(node, item_index, duration)
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

        def remove_node(self, node: Any) -> str | None:
            """Does not give the test that has ended one process to the next one as well."""
            work = self.assigned_work[node]
            begun = next((test for unit in work.values() for test, done in unit.items() if not done), None)
            for scope, unit in list(work.items()):
                unit.pop(begun, None)
                if all(unit.values()):
                    del work[scope]
            super().remove_node(node)
            return begun

    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    return FromBothEnds(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports a share of all tests first: in a fresh clone, no two processes compile the same module."""
    worker = getattr(session.config, "workerinput", None)
    folder = Path(__file__).parent
    if worker is None or [Path(each).resolve() for each in session.config.args] != [folder]:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    gc.disable()
    for path in sorted(folder.rglob("test_*.py"))[number::count]:
        with contextlib.suppress(Exception):  # the collection of its tests reports it
            importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


def pytest_collectstart() -> None:
    """Looks for no garbage meanwhile: nearly everything stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Takes what was imported and collected, which stays to the end, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


GOLDEN = goldenstores.unpacked() / "stores"


@cache
def golden_cases() -> list[str]:
    """Names of the golden stores (without the two collections of mutations)."""
    return sorted(p.parent.name for p in GOLDEN.glob("*/expected.json") if p.parent.name not in MUTATION_SETS)


MUTATION_SETS = ("mutations", "systematic")

#: One golden store of each kind of state and of damage.
KINDS_OF_STORES = frozenset(
    (
        "archived_bak", "bad_slice_name", "basic", "clustered", "crc_castagnoli", "dmg_clients_payload_flip",
        "dmg_dat_missing_idx_there", "dmg_early_slice_cut_payload_noidx", "dmg_garbage_idx",
        "dmg_idx_points_to_other_record", "dmg_last_slice_cut_header", "dmg_length_flip_noidx",
        "dmg_middle_slice_missing", "dmg_payload_flip_idx_intact", "dmg_server_missing", "dmg_subs_cut_payload",
        "dmg_unknown_type_subs", "dmg_version_2_dat", "dmg_zero_tail_dat_noidx", "dup_slice_after", "durables",
        "encrypted_aes", "foreign_files", "gap_truncated_slice", "limits_msgs", "no_permission_dat",
        "read_only_clients", "v038",
    )
)  # fmt: skip

#: One golden cluster of each kind of history and of damage.
KINDS_OF_CLUSTERS = frozenset(
    (
        "all_stores_lost_snapshot", "caught_up_by_snapshot", "channel_deleted", "churn_1", "conflicting_tail",
        "damaged_leaf", "damaged_lost_write", "damaged_metas", "damaged_snapshot", "encrypted", "free_pages",
        "group_pending_lost_1", "limits", "lost_store_snapshot", "node_removed", "old_0162", "stale_node",
        "standalone_between_gap", "store_rolled_back_snapshot",
    )
)  # fmt: skip


def others_slow(cases: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Parameters of a test: those whose first value is in `kept` for every run, the others for the slow one."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=() if row[0] in kept else pytest.mark.slow) for row in rows]


def cases_by_kind(cases: Iterable[str] | None = None) -> list[Any]:
    """Parameters of a test of what is shown, not of what is found: one store of each kind, all in the slow run."""
    return others_slow(golden_cases() if cases is None else cases, KINDS_OF_STORES)


#: Versions of nats-server as parameters: the oldest and the newest, those between in the slow run.
EACH_VERSION = [
    pytest.param(version, marks=() if version in (servers.OLDEST, servers.NEWEST) else pytest.mark.slow)
    for version in servers.VERSIONS
]


@cache
def load_expected(case: str) -> dict[str, Any]:
    """Reads what the real server saw in a golden store."""
    expected: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return expected


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden stores; nothing may be changed in it."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_clusters() -> Path:
    """The folder of golden clusters, with all nodes of each; nothing may be changed in it."""
    return GOLDEN.with_name("clusters")


@pytest.fixture(scope="session")
def golden_jetstream() -> Path:
    """The folder of golden JetStream directories; nothing may be changed in it."""
    return GOLDEN.with_name("jetstream")


@pytest.fixture(scope="session")
def golden_sql() -> Path:
    """The folder of golden SQL stores; nothing may be changed in it."""
    return GOLDEN.with_name("sql")


@pytest.fixture
def golden_copy(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a golden store to a place where it may be changed; applies its `setup`."""

    def copy(case: str) -> Path:
        target = tmp_path / case
        shutil.copytree(golden / case / "datastore", target)
        for path in target.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        target.chmod(0o755)
        for step in load_expected(case)["setup"]:
            place = target / step["path"]
            if step["op"] == "chmod":
                place.chmod(int(step["mode"], 8))
            elif step["op"] == "mkdir":
                place.mkdir()
            elif step["op"] == "symlink":
                place.symlink_to(step["target"])
            else:
                raise AssertionError(f"unknown set-up step {step}")
        return target

    return copy


@pytest.fixture(params=EACH_VERSION)
def each_server(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Any:
    """A running server of each version in turn."""
    return start_server(request.param)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts real servers: `start_server(version=…, config=…)`; all are stopped at the end of the test."""
    running: list[Any] = []

    def start(version: str = servers.NEWEST, config: dict[str, Any] | None = None, **more: Any) -> Any:
        if not servers.binary(version).exists():
            pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
        server = servers.NatsServer(tmp_path / f"server{len(running)}", version, config, **more)
        running.append(server)
        return server.start()

    yield start
    for server in running:
        server.kill()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A directory, in memory where that is possible: for tests with thousands of syncs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)
