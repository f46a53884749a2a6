"""Every golden dump migrated into a real nats-server: exactly the intact messages, at their sequences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from stantools.store.ranges import Ranges
from tests import servers
from tests.sqlstore.cases import CASES, expected


async def sequences_by_subject(url: str) -> dict[str, list[int]]:
    """Returns the sequences in each stream, by the subject of its messages; removes the streams."""
    client = await nats.connect(url)
    js = client.jetstream()
    found: dict[str, list[int]] = {}
    for stream in await js.streams_info():
        for sequence in range(max(stream.state.first_seq, 1), stream.state.last_seq + 1):
            try:
                message = await js.get_msg(stream.config.name, sequence)
            except NotFoundError:
                continue
            found.setdefault(str(message.subject), []).append(sequence)
        await js.delete_stream(stream.config.name)
    await client.close()
    return found


@pytest.mark.slow
@pytest.mark.skipif(servers.NEWEST not in servers.available(), reason="the newest nats-server is not here")
async def test_streams_have_exactly_the_intact_messages(golden_sql: Path, tmp_path: Path) -> None:
    server = servers.NatsServer(tmp_path / "server", servers.NEWEST)
    server.start()
    try:
        for case in CASES:
            facts = expected(golden_sql, case)
            keep = ["--keep-encrypted"] if facts["options"]["encryption"] else []
            dump = golden_sql / case / "dump.sql"
            options = ("--server", server.url, "--yes", "--accept-loss", *keep)
            command = (sys.executable, "-m", "stantools", "migrate", str(dump), *options)
            subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
            live = {each["id"]: each["name"] for each in facts["rows"].get("Channels", ()) if not each["deleted"]}
            wanted: dict[str, Ranges] = {}
            for messages in facts["rows"].get("Messages", ()):
                if (name := live.get(messages["id"])) and messages["intact"]:
                    wanted[name] = wanted.get(name, Ranges()) | Ranges.of(messages["intact"])
            found = await sequences_by_subject(server.url)
            for name, intact in wanted.items():
                assert found[name] == [each for first, last in intact for each in range(first, last + 1)], (case, name)
    finally:
        server.stop()
