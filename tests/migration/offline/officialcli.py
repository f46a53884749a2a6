"""What `nats stream restore DIRECTORY` of the official command line sends, and no more.

Facts: jetstream-migration.md section 4.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import natsclient

_PIECE = 64 << 10


async def restore(url: str, directory: Path) -> dict[str, Any]:
    """Restores one backup and returns the server's final answer."""
    request = json.loads((directory / "backup.json").read_bytes())
    async with natsclient.connected(url) as client:
        body = json.dumps({"config": request["config"], "state": request["state"]}).encode()
        begun = await client.request(f"$JS.API.STREAM.RESTORE.{request['config']['name']}", body)
        answer: dict[str, Any] = json.loads(begun.data)
        assert "error" not in answer, answer
        with (directory / "stream.tar.s2").open("rb") as file:
            while piece := file.read(_PIECE):
                taken = await client.request(answer["deliver_subject"], piece)
                assert not taken.data, taken.data
        final = await client.request(answer["deliver_subject"], b"", timeout=30)
        result: dict[str, Any] = json.loads(final.data)
        return result
