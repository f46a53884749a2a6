"""What sceptical users tried, and once found wanting."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.brokers import Broker


@pytest.mark.parametrize("port", [99_999, -5])
def test_ports_that_are_none(tmp_path: Path, port: int) -> None:
    broker = Broker(tmp_path, "-p", port).start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(20) == 1
    wanted = f'[FTL] Error listening on port: 127.0.0.1:{port}, "listen tcp: address {port}: invalid port"'
    assert broker.said().splitlines()[-1].endswith(wanted)


def test_no_port_for_monitoring(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "-m", 99_999).start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(20) == 1
    assert "[FTL] Can't start monitoring" in broker.said().splitlines()[-1]
    assert broker.said().endswith("listen tcp: address 99999: invalid port\n")


def test_the_reason_is_the_last_line(tmp_path: Path) -> None:
    words = ("-st", "FILE", "-dir", "ds")
    Broker(tmp_path, *words).start().stop(signal.SIGTERM)
    broker = Broker(tmp_path, *words, "-cid", "other").start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(20) == 1
    assert (
        broker.said()
        .splitlines()[-1]
        .endswith('[FTL] STREAM: Failed to start: cluster ID "other" does not match recovered value of "test-cluster"')
    )
