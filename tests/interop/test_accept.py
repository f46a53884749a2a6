"""What sceptical users tried, and once found wanting."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stantools.format.proto import store_pb2 as store
from tests.brokers import Broker
from tests.interop.rawclient import RawClient
from tests.servers import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("port", [99_999, -5])
def test_ports_that_are_none(tmp_path: Path, port: int) -> None:
    broker = Broker(tmp_path, "-p", port).start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    wanted = f'[FTL] Error listening on port: 127.0.0.1:{port}, "listen tcp: address {port}: invalid port"'
    assert broker.said().splitlines()[-1].endswith(wanted)


def test_no_port_for_monitoring(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "-m", 99_999).start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    assert "[FTL] Can't start monitoring" in broker.said().splitlines()[-1]
    assert broker.said().endswith("listen tcp: address 99999: invalid port\n")


def test_the_reason_is_the_last_line(tmp_path: Path) -> None:
    words = ("-st", "FILE", "-dir", "ds")
    Broker(tmp_path, *words).start().stop(signal.SIGTERM)
    broker = Broker(tmp_path, *words, "-cid", "other").start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    assert (
        broker.said()
        .splitlines()[-1]
        .endswith('[FTL] STREAM: Failed to start: cluster ID "other" does not match recovered value of "test-cluster"')
    )


def test_standard_streams_that_are_closed(tmp_path: Path) -> None:
    port = free_port()
    words = f"exec {sys.executable} -m broker -a 127.0.0.1 -p {port} -st FILE -dir ds 0<&- 1>&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(["sh", "-c", words], cwd=tmp_path, env=environment) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    client = RawClient(port, "me")
                    break
                except ConnectionError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            with client:
                assert client.stored(b"foo").error == b""
            opened = Path(f"/proc/{process.pid}/fd")
            if opened.exists():
                assert {str((opened / number).readlink()) for number in "012"} == {os.devnull}
        finally:
            process.terminate()
        assert process.wait(60) == 143


def test_interrupted_while_it_loads() -> None:
    script = """
import builtins, os, signal, sys
from broker import cli
load = builtins.__import__
def interrupted(name, *rest):
    if name == "broker.process":
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *rest)
builtins.__import__ = interrupted
sys.argv[1:] = ["-a", "127.0.0.1", "-p", "-1"]
cli.console()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_no_local_syslog(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "-r", "unix:///no/such").start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    assert "error connecting to syslog" in broker.said()
    assert "Traceback" not in broker.said()


@pytest.mark.parametrize("host", ["::", "::0"])
def test_all_addresses(tmp_path: Path, host: str) -> None:
    with Broker(tmp_path, "-a", host) as broker, RawClient(broker.port, "me") as client:
        assert client.stored(b"foo").error == b""


@pytest.mark.parametrize("embedded", [True, False])
def test_an_answer_and_the_first_messages_leave_in_one_write(tmp_path: Path, embedded: bool) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(Broker(tmp_path / "first")).port
        if not embedded:
            stack.enter_context(Broker(tmp_path / "second", "-ns", f"nats://127.0.0.1:{port}", "-cid", "c2"))
        client = stack.enter_context(RawClient(port, "me", "test-cluster" if embedded else "c2"))
        for _ in range(3):
            assert client.stored(b"foo").error == b""
        for number in range(20):
            inbox = client.inbox + b".%d" % number
            client.listen(b"foo", inbox)
            # They came with the last bytes that were waited for.
            assert client.unread.count(b"MSG " + inbox) == 3
            for sequence in (1, 2, 3):
                assert store.MsgProto.FromString(client.message()[2]).sequence == sequence
