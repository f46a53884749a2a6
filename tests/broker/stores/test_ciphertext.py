"""The look at a store's messages at its start: it tells encrypted ones, and holds nothing when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.stores import open_store
from broker.stores.ciphertext import suspected
from broker.stores.store_options import EncryptionOptions, FileOptions
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.making import IEEE, block, everything, flush, made

_NAMES = [b"channel.%d" % number for number in range(12)]
_COUNT = 100


def _fill(directory: Path, *, encrypted: bool) -> None:
    store = open_store("FILE", FileOptions(directory), encryption=EncryptionOptions(b"secret") if encrypted else None)
    store.recover()
    store.init(new_server_info(b"c"))
    for name in _NAMES:
        channel = made(store, name)
        channel.messages.append(block(name, 1, [b"%d of plain text" % number for number in range(_COUNT)]))
        flush(store, channel.messages)
    store.close()


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_look_leaves_no_files_open_and_no_messages_in_memory(tmp_path: Path, encrypted: bool) -> None:
    _fill(tmp_path, encrypted=encrypted)
    store = open_store("FILE", FileOptions(tmp_path))
    recovered = store.recover()
    assert recovered is not None
    before = _open_files()
    assert {*suspected(recovered.channels, IEEE)} == ({*_NAMES} if encrypted else set())
    assert _open_files() == before
    for channel, _ in recovered.channels.values():
        assert channel.messages.reader._ahead.size == 0  # type: ignore[attr-defined]
        # They are opened again when somebody reads.
        assert len(everything(channel.messages)) == _COUNT
    assert _open_files() > before
    store.close()
