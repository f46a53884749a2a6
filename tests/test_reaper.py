"""Servers end with the test process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers
from tests.waiting import is_readable

ROOT = Path(__file__).parents[1]
#: Starts servers in the main thread and in another one, prints their ids, and stays.
_STARTS = """
import sys, threading
from pathlib import Path
from tests.brokers import Broker
from tests.servers import NatsServer

ended, *started = [NatsServer(Path(sys.argv[1], name)) for name in ("ended", "one", "two")]
started.append(Broker(Path(sys.argv[1], "broker"), environment={"PYTHONUNBUFFERED": "1"}))
ended.start().kill()
for each in started:
    thread = threading.Thread(target=each.start)
    thread.start()
    thread.join()
started[0].kill()
started[0].start()
print(*(each.process.pid for each in started), flush=True)
threading.Event().wait(120)
"""


def test_servers_end_with_the_test_process_that_is_killed(tmp_path: Path) -> None:
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip(f"nats-server {servers.NEWEST} is not here (python tests/servers.py)")
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        running = [os.pidfd_open(int(word)) for word in process.stdout.readline().split()]
        try:
            assert len(running) == 3 and not any(is_readable(each, 0) for each in running)
            process.kill()
            for each in running:
                assert is_readable(each, 60), "a server outlives the process that started it"
        finally:
            for each in running:
                if not is_readable(each, 0):
                    signal.pidfd_send_signal(each, signal.SIGKILL)
                os.close(each)
