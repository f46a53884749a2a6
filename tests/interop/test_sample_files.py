"""The configuration files in samples/broker, each started and used as its comments say."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stantools.streaming.client import ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import AckTimeoutError, NoServerError
from tests.broker.nats.certificates import Party, party
from tests.brokers import Broker

FILES = Path(__file__).parents[2] / "samples" / "broker"


def place(folder: Path, name: str) -> None:
    """Copies a file to where its broker will run."""
    shutil.copy(FILES / name, folder / name)


async def test_file(tmp_path: Path) -> None:
    place(tmp_path, "file.conf")
    broker = Broker(tmp_path, "-c", "file.conf", http=True)
    log = tmp_path / "broker.log"  # which the file names, too

    with broker:
        assert "Store location: datastore" in log.read_text()
        assert (tmp_path / "broker.pid").exists()
        async with await connect(broker.url, "test-cluster", "me") as client:
            await client.publish("orders", b"kept")
        assert broker.stop() == 0
        broker.start()
        got: asyncio.Queue[Message] = asyncio.Queue()
        async with await connect(broker.url, "test-cluster", "me") as client:
            await client.subscribe("orders", got.put, SubscriptionOptions(start=Start.first()))
            assert (await got.get()).data == b"kept"
        assert "Age          :       72h0m0s" in log.read_text()


def test_limits(tmp_path: Path) -> None:
    place(tmp_path, "limits.conf")
    with Broker(tmp_path, "-c", "limits.conf", http=True) as broker:
        limits = broker.figures("streaming/storez")["limits"]
    assert (limits["max_channels"], limits["max_subscriptions"], limits["max_msgs"]) == (200, 0, 10000)
    hour = 3600 * 10**9

    def shown(name: str) -> tuple[Any, ...]:
        channel = limits["channels"][name]
        return tuple(
            channel[key] for key in ("max_msgs", "max_bytes", "max_age", "max_subscriptions", "max_inactivity")
        )

    assert shown("audit.>") == (0, 16 << 20, 0, 0, 0)
    assert shown("audit.tmp.*") == (100, 16 << 20, 0, 0, 0)
    assert shown("metrics") == (10000, 64 << 20, hour, 0, 0)
    assert shown("session.*") == (10000, 16 << 20, 24 * hour, 1, hour // 4)


def keep(someone: Party, folder: Path, name: str) -> None:
    shutil.copy(someone.cert, folder / f"{name}.pem")
    shutil.copy(someone.key, folder / f"{name}.key")


async def test_locked(tmp_path: Path) -> None:
    place(tmp_path, "locked.conf")
    authority = party(tmp_path, "our-authority")
    shutil.copy(authority.cert, tmp_path / "ca.pem")
    keep(party(tmp_path, "our-server", authority), tmp_path, "server")
    keep(party(tmp_path, "our-client", authority), tmp_path, "client")
    without = {"tls_ca": tmp_path / "ca.pem"}
    with_certificate = without | {"tls_cert": tmp_path / "client.pem", "tls_key": tmp_path / "client.key"}
    environment = {"BROKER_PASSWORD": "b0123456789"}
    with Broker(tmp_path, "-c", "locked.conf", "-a", "127.0.0.1", environment=environment) as broker:
        got: asyncio.Queue[Message] = asyncio.Queue()
        client = await connect(broker.url, "orders", "app", user="app", password="app secret", **with_certificate)
        async with client:
            await client.publish("orders", b"first")
            await client.subscribe("orders", got.put, SubscriptionOptions(start=Start.first(), durable="d"))
            assert (await got.get()).data == b"first"
        options = ClientOptions(ack_timeout=2)
        client = await connect(
            broker.url,
            "orders",
            "sensor",
            options,
            user="sensor",
            password="sensor secret",
            **with_certificate,
        )
        async with client:
            await client.publish("readings", b"21")
            with pytest.raises(AckTimeoutError):  # the broker never sees it
                await client.publish("orders", b"not allowed")
        with pytest.raises(NoServerError):
            await connect(broker.url, "orders", "app", user="app", password="guessed", **with_certificate)
        with pytest.raises(NoServerError):
            await connect(broker.url, "orders", "app", user="app", password="app secret", **without)
        assert broker.stop() == 0


def test_streams(tmp_path: Path) -> None:
    place(tmp_path, "streams.conf")
    with Broker(tmp_path, "-c", "streams.conf") as broker:
        script = [sys.executable, FILES.parent / "streams.py", broker.url]
        done = subprocess.run(script, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            *(f"{number + 1} order {number}" for number in range(10)),
            "orders left: 0",
            "color: ['red', 'blue']",
            "large: 1000000 bytes",
        ]
        script = [sys.executable, FILES.parent / "channels.py", broker.url]
        done = subprocess.run(script, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "stream: deliveries_new",
            *(f"{number + 1} delivery {number}" for number in range(5)),
        ]
    assert (tmp_path / "streams/jetstream/$G/streams/ORDERS/msgs").is_dir()
    assert (tmp_path / "channels/server.dat").exists()


def test_programs_of_the_readme(tmp_path: Path) -> None:
    """The page's commands in one terminal, after its broker in another."""
    lines = (FILES.parent / "README.md").read_text().split("Programs that connect to a broker", 1)[1].splitlines()
    commands = [line.split("#")[0].split() for line in lines[1:8] if line.startswith("    ")]
    assert commands[0][:2] == ["stan-broker", "-c"] and len(commands) == 4
    place(tmp_path, Path(commands[0][2]).name)
    with Broker(tmp_path, "-c", Path(commands[0][2]).name) as broker:
        for program, *words, url in commands[1:]:
            assert (program, url) == ("python", "nats://localhost:4222")
            script = [sys.executable, *words, broker.url]
            done = subprocess.run(script, capture_output=True, text=True, timeout=120, cwd=FILES.parents[1])
            assert done.returncode == 0 and done.stdout, (words, done.stderr)
