"""A signal ends the process in time, whatever it is doing, and nothing acknowledged is lost by that."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import natsclient
from tests.brokers import READY, Broker
from tests.interop.talker import Client, Talker
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
#: A broker in which a request to the API with this subject never ends.
_STUCK = """
import sys, time
from broker.streams.api import Api
answer = Api.answer
def stuck(self, subject, header, body):
    if subject.endswith(b".STUCK"):
        print("stuck", flush=True)
        {how}
    return answer(self, subject, header, body)
Api.answer = stuck
from broker.cli import console
sys.argv[0] = "stan-broker"
console()
"""
_HOW = {"busy": "while True: pass", "blocked": "time.sleep(600)"}
#: Seconds until the test fails. Two are what is promised, on a machine that has the time.
_PATIENCE = 30


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.mark.parametrize(("how", "number", "code"), [("busy", signal.SIGTERM, 143), ("blocked", signal.SIGINT, 0)])
async def test_a_loop_that_never_comes_back_does_not_keep_the_process(
    tmp_path: Path, how: str, number: int, code: int
) -> None:
    port, log = free_port(), tmp_path / "log"
    words = ["-a", "127.0.0.1", "-p", str(port), "-st", "memory", "-js", "-sd", str(tmp_path / "store")]
    script = _STUCK.format(how=_HOW[how])
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", script, *words], cwd=ROOT, stdout=file, stderr=file)
    try:
        _wait_for(log, READY, process)
        client = await natsclient.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        await client.jetstream().add_stream(name="S", subjects=["s.>"])
        answers = await asyncio.gather(*(client.request(f"s.{each}", b"x") for each in range(200)))
        acknowledged = [json.loads(answer.data)["seq"] for answer in answers]
        # The last ones may never be acknowledged.
        for each in range(200):
            await client.publish(f"s.{each}", b"y")
        await client.publish("$JS.API.STREAM.INFO.STUCK", b"")
        await client._flush_pending(force_flush=True)
        _wait_for(log, "stuck", process)
        process.send_signal(number)
        assert process.wait(_PATIENCE) == code
        assert "takes longer than" in log.read_text()
    finally:
        process.kill()
        process.wait()

    with Broker(tmp_path / "again", "-st", "memory", "-js", "-sd", tmp_path / "store") as broker:
        async with natsclient.connected(broker.url) as client:
            for sequence in acknowledged:
                assert (await client.jetstream().get_msg("S", sequence)).data == b"x"
        assert broker.stop(signal.SIGTERM, _PATIENCE) == 143
        assert "takes longer than" not in broker.said()


async def test_many_requests_at_work_do_not_keep_the_process(tmp_path: Path) -> None:
    """Requests that are interrupted all the time are dropped: the end is one in order."""

    with Broker(tmp_path, "-st", "memory", "-js", "-sd", tmp_path / "store") as broker:
        client = await natsclient.connect(broker.url, allow_reconnect=False)
        js = client.jetstream()
        await js.add_stream(name="KV", subjects=["kv.>"], allow_direct=True)
        for number in range(20_000):
            await client.publish(f"kv.{number}.{number % 7}", b"")
        await client.flush()
        inbox = client.new_inbox()
        await client.subscribe(inbox)
        patterns = json.dumps({"multi_last": [f"kv.*.x{number}" for number in range(2000)]}).encode()
        for _ in range(200):
            await client.publish("$JS.API.DIRECT.GET.KV", patterns, reply=inbox)
        await client._flush_pending(force_flush=True)
        assert broker.stop(signal.SIGTERM, _PATIENCE) == 143
        assert "takes longer than" not in broker.said()


#: A broker on a disk that hangs from the moment on when there is a certain file.
_HANGING = """
import os, sys, time
from broker.stores.file import disk
from tests.broker.stores.faults import CalledSyncs
fsync = os.fsync
def sync(descriptor):
    if os.path.exists({hangs!r}):
        print("it hangs", flush=True)
        time.sleep(600)
    fsync(descriptor)
os.fsync, disk.KernelSyncs = sync, CalledSyncs
from broker.cli import console
sys.argv[0] = "stan-broker"
console()
"""


def test_the_last_line_names_what_a_hanging_disk_has_not_taken(tmp_path: Path) -> None:
    port, log, store, hangs = free_port(), tmp_path / "log", tmp_path / "store", tmp_path / "hangs"
    words = ["-a", "127.0.0.1", "-p", str(port), "-st", "file", "-dir", str(store), "--file_sync"]
    script = _HANGING.format(hangs=str(hangs))
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", script, *words], cwd=ROOT, stdout=file, stderr=file)
    try:
        _wait_for(log, READY, process)
        with Talker(port) as nats:
            client = Client(nats, "me")
            client.store(b"written", b"1")
            client.store(b"hanging", b"1")
            hangs.touch()
            message = client.publication(b"hanging", b"2")
            nats.publish(client.subjects.pub_prefix + b".hanging", message.SerializeToString())
            _wait_for(log, "it hangs", process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_PATIENCE) == 143
        said = [line for line in log.read_text().splitlines() if "takes longer than" in line]
        assert len(said) == 1
        assert said[0].endswith(f"Still being written: {store / 'hanging'}")
    finally:
        process.kill()
        process.wait()
