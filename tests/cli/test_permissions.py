"""What this user may not read: refused with exit code 3 by every verb, and nothing is written.

The verbs run as a user without rights, since nothing is closed to root.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import jinja2  # noqa: F401 - loaded before the rights are gone
import pytest

OTHER = "nobody"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's place")


@pytest.fixture
def place(tmp_path: Path, run) -> Path:
    """A folder that everybody may write to, with a store in it."""
    for each in (tmp_path, *tmp_path.parents):
        if each.name.startswith(("pytest-", "popen-", "test_")):
            each.chmod(each.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    assert run("sample", tmp_path / "store", "--name", "orders", "--name", "telemetry", "--messages", 20).code == 0
    for path in (tmp_path / "store").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "store").chmod(0o755)
    return tmp_path


@pytest.fixture
def as_other(place: Path, run, monkeypatch, tmp_path_factory):
    """Runs a verb as a user without rights, in the folder.

    Root has run it before, elsewhere: where Python and its modules lie may be closed to others.
    """
    warm = tmp_path_factory.mktemp("warm")
    shutil.copytree(place, warm, dirs_exist_ok=True)

    def clean() -> None:
        """Takes away what root's run has made."""
        shutil.rmtree(warm)
        shutil.copytree(place, warm)

    def invoke(*words: str, **variables: str):
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(warm)
            run(*words, env=variables)
        monkeypatch.chdir(place)
        os.seteuid(pwd.getpwnam(OTHER).pw_uid)
        try:
            return run(*words, env=variables)
        finally:
            os.seteuid(0)

    invoke.warm, invoke.clean = warm, clean  # type: ignore[attr-defined]
    return invoke


VERBS = [
    ("doctor", "store"),
    ("store",),
    ("verify", "store"),
    ("forecast", "store"),
    ("info", "store"),
    ("subs", "store"),
    ("clients", "store"),
    ("messages", "store", "orders"),
    ("salvage", "store", "--out", "new"),
    ("salvage", "store", "--dry-run"),
    ("compact", "store", "--out", "new"),
    ("truncate-bad-eof", "store", "--yes"),
    ("migrate", "plan", "store", "--out", "new"),
    ("report", "store", "--html", "page.html"),
    ("diff", "store", "store"),
    ("replay", "store", "--to", "nats://127.0.0.1:1"),
    ("pipeline", "verify", "store"),
    ("pipeline", "salvage", "store", "--out", "new"),
    ("export", "store", "--to", "new.ndjson", "--format", "ndjson"),
]


def entries(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for each in place.rglob("*") if each.name != ".cache"}


def check_denied(as_other, place: Path, words: tuple[str, ...], *texts: str) -> None:
    """Runs a verb for a user who may not read a file; it says so, and writes nothing."""
    before = entries(place)
    done = as_other(*words)
    said = " ".join(done.err.split())
    assert done.code == 3, (words, texts, done.out, done.err)
    assert [each for each in ("owner: root", *texts) if each not in said] == [], (words, said)
    assert entries(place) == before, (words, texts)
    assert "Traceback" not in said and "lost" not in done.out, (words, texts)
    as_other.clean()


def check_all_denied(as_other, place: Path, verbs: list[tuple[str, ...]], closed: str) -> None:
    """Runs all verbs for a user who may not read a file with messages."""
    for words in verbs:
        check_denied(as_other, place, words, closed, "may not read", f"sudo -u root stantools {' '.join(words)}`")


def check_closed(as_other, place: Path, store: str, verb: str, name: str, mode: int) -> None:
    """Runs a verb for a user for whom a part of a store is closed."""
    closed = place / store / name
    usual = closed.stat().st_mode
    closed.chmod(mode)
    words = (verb, store.partition("/")[0], *(("--out", "new") if verb == "salvage" else ()))
    check_denied(as_other, place, words, name or closed.name, "sudo -u root")
    closed.chmod(usual)


def test_no_verb_takes_it_for_damage(place: Path, as_other) -> None:
    (place / "store" / "orders" / "msgs.1.dat").chmod(0o600)
    check_all_denied(as_other, place, VERBS, "orders/msgs.1.dat")


CLOSED = {
    "the store": ("", 0o700),
    "the store, to be entered": ("", 0o744),
    "a channel": ("orders", 0o700),
    "a channel, to be entered": ("orders", 0o744),
    "server.dat": ("server.dat", 0o600),
    "clients.dat": ("clients.dat", 0o600),
    "subs.dat": ("orders/subs.dat", 0o600),
    "an index": ("orders/msgs.2.idx", 0o600),
}
CLOSED_TO_OTHERS = [("info", "the store"), ("info", "a channel"), ("salvage", "a channel"), ("salvage", "an index")]


def test_whatever_is_closed(place: Path, as_other) -> None:
    for verb, what in (*(("doctor", each) for each in CLOSED), *CLOSED_TO_OTHERS):
        check_closed(as_other, place, "store", verb, *CLOSED[what])


@pytest.fixture
def streams(place: Path, golden_jetstream: Path) -> Path:
    """The store directory of a nats-server beside the store, with two accounts."""
    shutil.copytree(golden_jetstream / "ok_accounts15" / "store", place / "nats")
    for path in ((place / "nats"), *(place / "nats").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (place / "nats/jetstream/ACME/streams/ORDERS/obs").mkdir(exist_ok=True)
    return place / "nats/jetstream"


STREAM_VERBS = [
    ("doctor", "nats"),
    ("nats",),
    ("verify", "nats"),
    ("forecast", "nats"),
    ("info", "nats"),
    ("subs", "nats"),
    ("messages", "nats", "ACME/ORDERS"),
    ("salvage", "nats", "--out", "new"),
    ("salvage", "nats", "--dry-run"),
    ("repair", "nats", "--in-place", "--yes"),
    ("guard", "nats"),
    ("migrate", "plan", "nats", "--out", "new"),
    ("report", "nats", "--html", "page.html"),
    ("diff", "nats", "nats"),
    ("stats", "nats"),
    ("merge", "nats", "nats", "--out", "new"),
    ("export", "nats", "--to", "new.ndjson", "--format", "ndjson"),
]


def test_no_verb_takes_a_closed_block_for_damage(streams: Path, as_other) -> None:
    (streams / "ACME/streams/ORDERS/msgs/1.blk").chmod(0o600)
    check_all_denied(as_other, streams.parent.parent, STREAM_VERBS, "ACME/streams/ORDERS/msgs/1.blk")


CLOSED_STREAMS = {
    "the folder": ("", 0o700),
    "the folder, to be entered": ("", 0o744),
    "an account": ("ACME", 0o700),
    "its streams": ("ACME/streams", 0o700),
    "a stream": ("ACME/streams/ORDERS", 0o700),
    "its blocks": ("ACME/streams/ORDERS/msgs", 0o744),
    "its consumers": ("ACME/streams/ORDERS/obs", 0o700),
    "its configuration": ("ACME/streams/ORDERS/meta.inf", 0o600),
    "its index": ("ACME/streams/ORDERS/msgs/index.db", 0o600),
}


@pytest.mark.parametrize("verb", ["doctor", "salvage"])
def test_whatever_of_streams_is_closed(streams: Path, as_other, verb: str) -> None:
    for name, mode in CLOSED_STREAMS.values():
        check_closed(as_other, streams.parent.parent, "nats/jetstream", verb, name, mode)


def test_streams_can_be_left_out(streams: Path, as_other) -> None:
    (streams / "ACME/streams/ORDERS/msgs/1.blk").chmod(0o600)
    (streams / "lost+found").mkdir(mode=0o700)
    done = as_other("salvage", "nats", "--out", "new", "--accept-unreadable")
    assert done.code in (1, 5), done.err
    assert "ACME/streams/ORDERS/msgs/1.blk; owner: root: left out" in " ".join(done.err.split())
    assert as_other("messages", "new", "B-corp/EVENTS").code == 0
    assert as_other("verify", "nats", "--accept-unreadable").code == 1
    guarded = as_other("guard", "nats", "--accept-unreadable")
    assert guarded.code == 4 or "NOT CHECKED" in guarded.err
    (streams / "ACME").chmod(0o700)
    done = as_other("verify", "nats", "--accept-unreadable")
    assert done.code == 1 and "jetstream/ACME; owner: root: left out" in " ".join(done.err.split())


def test_only_streams_that_are_asked_for_count(streams: Path, as_other) -> None:
    (streams / "ACME/streams/ORDERS/msgs/1.blk").chmod(0o600)
    assert as_other("messages", "nats", "B-corp/EVENTS").code == 0


@pytest.mark.parametrize("more", [(), ("--copy-to", "new")])
def test_guard_starts_no_server_that_cannot_read_its_store(streams: Path, as_other, monkeypatch, more) -> None:
    started = []
    monkeypatch.setattr("stantools.cli.guard._become", lambda _program, command: started.append(Path.cwd()))
    place = streams.parent.parent
    for closed, store in (
        ("store/orders/msgs.1.dat", "store"),
        ("nats/jetstream/ACME/streams/ORDERS/meta.inf", "nats"),
    ):
        (place / closed).chmod(0o600)
        done = as_other("guard", store, *more, "--", "echo")
        assert done.code == 3 and closed.split("/", 1)[1] in done.err, done.err
        assert set(started) == {Path(as_other.warm)} and not (place / "new").exists()


def test_archived_slices_count(place: Path, as_other) -> None:
    archived = place / "store" / "orders" / "msgs.1.dat.bak"
    archived.write_bytes((place / "store" / "orders" / "msgs.1.dat").read_bytes())
    archived.chmod(0o600)
    done = as_other("doctor", "store")
    assert done.code == 3 and "orders/msgs.1.dat.bak" in done.err


def test_it_can_be_left_out(place: Path, as_other) -> None:
    (place / "store" / "orders" / "msgs.1.dat").chmod(0o600)
    done = as_other("salvage", "store", "--out", "new", "--accept-unreadable")
    assert done.code in (1, 5), done.err
    assert "orders/msgs.1.dat" in done.err and "left out" in done.err
    assert (place / "new" / "server.dat").exists()
    assert as_other("doctor", "store", "--accept-unreadable").code == 1


def test_only_what_is_asked_for_counts(place: Path, as_other) -> None:
    (place / "store" / "orders" / "msgs.1.dat").chmod(0o600)
    assert as_other("messages", "store", "telemetry").code == 0
    assert as_other("verify", "store", "--channel", "telemetry").code == 0
    assert as_other("verify", "store", "--channel", "orders").code == 3


def test_a_single_file(place: Path, as_other) -> None:
    file = place / "store" / "orders" / "msgs.1.dat"
    file.chmod(0o600)
    done = as_other("records", "store/orders/msgs.1.dat")
    assert done.code == 3 and "owner: root" in done.err
    assert "`sudo -u root stantools records store/orders/msgs.1.dat`" in done.err
    assert "--accept-unreadable" not in done.err


def test_the_command_takes_its_variables_along(place: Path, as_other) -> None:
    (place / "store" / "server.dat").chmod(0o600)
    done = as_other("doctor", "--encryption-key-env", "K", K="secret", STANTOOLS_STORE="store")
    assert "`sudo --preserve-env=K,STANTOOLS_STORE -u root stantools doctor --encryption-key-env K`" in " ".join(
        done.err.split()
    )


def test_a_file_of_its_own_that_nobody_may_read(place: Path, as_other) -> None:
    """Its owner cannot read it either: only root can."""
    file = place / "store" / "orders" / "subs.dat"
    user = pwd.getpwnam(OTHER)
    os.chown(file, user.pw_uid, user.pw_gid)
    file.chmod(0)
    done = as_other("doctor", "store")
    assert done.code == 3 and f"owner: {OTHER}" in done.err and "`sudo stantools doctor store`" in done.err


def test_what_belongs_to_the_system_is_no_channel(place: Path, as_other, run) -> None:
    store = place / "store"
    for name in ("lost+found", ".Trash-1000", "@eaDir", ".snapshot", "$RECYCLE.BIN", "System Volume Information"):
        (store / name).mkdir(mode=0o700)
    done = as_other("info", "store", "-o", "json")
    assert done.code == 0, done.err
    assert '"orders"' in done.out and "lost+found" not in done.out and "eaDir" not in done.out
    out = place / "new"
    assert run("salvage", store, "--out", out).code == 0
    assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["orders", "telemetry"]
    # What has slices in it is a channel, whatever its name.
    (store / "orders").rename(store / ".orders")
    names = [each["name"] for each in run("info", store, "-o", "json").json()["channels"]]
    assert names == [".orders", "telemetry"]


@pytest.mark.parametrize("closed", ["raft", "data", "raft/*/raft.log", "data/*/msgs.1.dat"])
@pytest.mark.parametrize("verb", ["info", "merge"])
def test_nodes_of_a_cluster(tmp_path: Path, golden_clusters: Path, as_other, closed: str, verb: str) -> None:
    """A node whose log may not be read is not taken for a store without one."""
    shutil.copytree(golden_clusters / "channel_deleted" / "nodes", tmp_path / "nodes")
    for path in (tmp_path / "nodes").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    path = next((tmp_path / "nodes" / "a").glob(closed))
    path.chmod(0o700 if path.is_dir() else 0o600)
    words = {"info": ["info", "nodes/a"], "merge": ["merge", "nodes/a", "nodes/b", "nodes/c", "--out", "new"]}[verb]
    shutil.copytree(golden_clusters / "channel_deleted" / "nodes", Path(as_other.warm) / "nodes")
    done = as_other(*words)
    assert done.code == 3 and path.name in done.err and "owner: root" in done.err, done.err
    assert f"`sudo -u root stantools {' '.join(words)}`" in " ".join(done.err.split())
    assert not (tmp_path / "new").exists()
    assert ("--accept-unreadable" in done.err) is (path.name == "msgs.1.dat")
