"""Encrypted files of real servers open with the right key and account, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.sealing import ServerKeys, StreamCipher

KEYS = {"ok_chacha15": b"s3cr3t!!", "ok_aes12": b"another-key"}


@pytest.mark.parametrize(("case", "cipher"), [("ok_chacha15", StreamCipher.CHACHA), ("ok_aes12", StreamCipher.AES)])
def test_key_files(golden_jetstream: Path, case: str, cipher: StreamCipher) -> None:
    stream = golden_jetstream / case / "store/jetstream/$G/streams/ORDERS"
    sealed, meta = (stream / "meta.key").read_bytes(), (stream / "meta.inf").read_bytes()
    opened = ServerKeys([KEYS[case]], "$G").open(sealed, "ORDERS")
    assert (opened.cipher, opened.previous) == (cipher, False)
    assert opened.unseal(meta).startswith(b'{"Created"')
    assert ServerKeys([b"new", KEYS[case]], "$G").open(sealed, "ORDERS").previous
    for keys, account, context in (([b"new"], "$G", "ORDERS"), ([KEYS[case]], "ACME", "ORDERS"), ([], "$G", "ORDERS")):
        with pytest.raises(ArchiveError):
            ServerKeys(keys, account).open(sealed, context)
    for damaged in (sealed[:-1], b"", bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(ArchiveError):
            ServerKeys([KEYS[case]], "$G").open(damaged, "ORDERS")
    with pytest.raises(ArchiveError):
        opened.unseal(meta[:-1])
    with pytest.raises(ArchiveError):
        opened.unseal(b"short")
