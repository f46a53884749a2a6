from __future__ import annotations

import base64
import hashlib
import random
import struct
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.encryption import (
    ChannelCipher,
    Cipher,
    DecryptError,
    channel_key,
    cipher_named,
    looks_encrypted,
    master_key,
    may_be_encrypted,
    raft_cipher,
)
from stantools.format.proto import store_pb2 as pb
from tests.conftest import load_expected
from tests.envelopes import Records

AES_SAMPLE = bytes.fromhex("0100000000000000000000000142188c6237c351e257c59feaa1e47365a03672c1e4")
CHACHA_SAMPLE = bytes.fromhex("020000000000000000000000016e69d75be40ddca99df27c3a89cea250d4495d6a9e")


def test_keys_of_the_specification() -> None:
    assert master_key(b"secret").hex() == "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    assert channel_key(b"secret", b"foo").hex() == ("391a7dc9b0658ca752a259a02fccb0971e2326a95fb5f37675f53f73229a9998")
    with pytest.raises(UsageError, match="encryption key required"):
        master_key(b"")


@pytest.mark.parametrize(("sample", "cipher"), [(AES_SAMPLE, Cipher.AES), (CHACHA_SAMPLE, Cipher.CHACHA)])
def test_samples_of_the_specification(sample: bytes, cipher: Cipher) -> None:
    channel = ChannelCipher(b"secret", b"foo", random=bytes(4))
    assert channel.encrypt(b"hello", cipher) == sample
    assert channel.decrypt(memoryview(sample)) == b"hello"
    assert looks_encrypted(sample, 1) and not looks_encrypted(bytes([0x01]) + bytes(40), 1)


def test_the_nonce_counts_as_one_number() -> None:
    channel = ChannelCipher(b"secret", b"foo", last_sequence=2**64 - 3, random=b"\0\0\0\xff")
    nonces = [channel.encrypt(data, Cipher.AES)[1:13].hex() for data in (b"a", b"", b"b", b"c")]
    assert nonces == ["000000fffffffffffffffffe", "", "000000ffffffffffffffffff", "000001000000000000000000"]
    random = {ChannelCipher(b"k", b"c").encrypt(b"x", Cipher.AES)[1:5] for _ in range(8)}
    assert len(random) > 1


@pytest.mark.parametrize("plain", [b"", b"plain", b"\0", b"\x03" + bytes(60)])
def test_plain_data_is_returned_as_it_is(plain: bytes) -> None:
    assert ChannelCipher(b"secret", b"foo").decrypt(plain) == plain
    assert not looks_encrypted(plain, 1)


@pytest.mark.parametrize("sample", [AES_SAMPLE, CHACHA_SAMPLE])
def test_errors_have_the_texts_of_the_server(sample: bytes) -> None:
    text = {1: "cipher: message authentication failed", 2: "chacha20poly1305: message authentication failed"}
    cipher = ChannelCipher(b"secret", b"foo")
    for size in range(1, 14):
        with pytest.raises(DecryptError, match=rf"^trying to decrypt data that is not \(len={size}\)$"):
            cipher.decrypt(sample[:size])
    for size in range(14, len(sample)):
        with pytest.raises(DecryptError, match=f"^{text[sample[0]]}$"):
            cipher.decrypt(sample[:size])
    for other in (ChannelCipher(b"Secret", b"foo"), ChannelCipher(b"secret", b"fo")):
        with pytest.raises(DecryptError, match=f"^{text[sample[0]]}$"):
            other.decrypt(sample)


def test_cipher_names() -> None:
    assert (cipher_named("aes"), cipher_named("ChaCha")) == (Cipher.AES, Cipher.CHACHA)
    with pytest.raises(UsageError, match="encryption cipher not supported"):
        cipher_named("rot13")


def test_raft_entries_use_the_master_key() -> None:
    sealed = raft_cipher(b"secret").encrypt(b"entry", Cipher.CHACHA)
    assert raft_cipher(b"secret").decrypt(sealed) == b"entry"
    with pytest.raises(DecryptError):
        ChannelCipher(b"secret", b"").decrypt(sealed)


def stored_messages(directory: Path, crc: Crc) -> list[pb.MsgProto]:
    found = []
    for path in directory.glob("msgs.*.dat"):
        data = path.read_bytes()
        for record in Records(data, 4, len(data), typed=False, crc=crc):
            found.append(gogo.decode(pb.MsgProto, record.payload))
    return sorted(found, key=lambda message: message.sequence)


@pytest.mark.parametrize("case", ["encrypted_aes", "encrypted_chacha"])
def test_golden_messages(golden: Path, case: str) -> None:
    expected = load_expected(case)
    key = expected["options"]["encryption"]["key"].encode()
    code = Cipher[expected["options"]["encryption"]["cipher"]]
    for name, channel in expected["channels"].items():
        stored = stored_messages(golden / case / "datastore" / name, Crc())
        cipher, wrong = ChannelCipher(key, name.encode()), ChannelCipher(b"not the key", name.encode())
        assert [m.sequence for m in stored] == [m["seq"] for m in channel["messages"]]
        for message, facts in zip(stored, channel["messages"], strict=True):
            data = cipher.decrypt(message.data)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["len"], facts["sha256"])
            if "b64" in facts:
                assert data == base64.b64decode(facts["b64"])
            if data:
                assert looks_encrypted(message.data, message.sequence)
                assert message.data[0] == code
                with pytest.raises(DecryptError):
                    wrong.decrypt(message.data)
                # Writing it again with the same nonce gives the same bytes.
                nonce = message.data[1:13]
                again = ChannelCipher(
                    key,
                    name.encode(),
                    last_sequence=int.from_bytes(nonce[4:], "big") - 1,
                    random=nonce[:4],
                )
                assert again.encrypt(data, code) == message.data
            else:
                assert not message.data


def test_a_store_may_hold_plain_data_and_both_ciphers() -> None:
    cipher = ChannelCipher(b"secret", b"foo")
    stored = [b"plain", cipher.encrypt(b"one", Cipher.AES), cipher.encrypt(b"two", Cipher.CHACHA), b""]
    assert [cipher.decrypt(data) for data in stored] == [b"plain", b"one", b"two", b""]


def sealed(count: int, *, first: int = 1, size: int = 40, cipher: Cipher = Cipher.AES) -> list[tuple[int, bytes]]:
    """Messages as a server stores them that was started before the first."""
    channel = ChannelCipher(b"secret", b"orders", last_sequence=first - 1)
    return [(first + each, channel.encrypt(b"x" * size, cipher)) for each in range(count)]


def test_encrypted_messages_are_suspected() -> None:
    counts: list[int] = [1, 2, 3, 4, 8]
    sizes: list[int] = [1, 17, 1000]
    for cipher in Cipher:
        for count in counts:
            for size in sizes:
                messages = sealed(count, first=900, size=size, cipher=cipher)
                assert may_be_encrypted(messages), (cipher, count, size)
                # Encryption that was turned on later, and a server that was started again in between.
                assert may_be_encrypted([(1, b"plain"), (2, b"\x01 plain and long enough to be one"), *messages]), (
                    cipher,
                    count,
                    size,
                )
                assert may_be_encrypted([*messages, *sealed(3, first=2000, cipher=cipher)]), (cipher, count, size)


PLAIN = {
    "a version, a number, a measurement": [
        (n, b"\x01" + struct.pack(">IdH", n, 20.5 + n, 7) + b"sensor-%03d" % n + random.Random(n).randbytes(20))
        for n in range(1, 9)
    ],
    "random after the first byte": [(n, b"\x01" + random.Random(n).randbytes(60)) for n in range(1, 2000)],
    "a version, zeros": [(n, b"\x02" + bytes(60)) for n in range(1, 9)],
    "a device, its own count, text": [
        (n, b"\x01" + b"dev1" + struct.pack(">Q", n) + b"the temperature is %d degrees today" % n) for n in range(1, 9)
    ],
    "a device, its own count, a protocol": [
        (n, b"\x01" + b"dev1" + struct.pack(">Q", n) + b"\xff\xfe\0\0" + random.Random(n).randbytes(40))
        for n in range(1, 9)
    ],
    "length and count in little endian": [
        (n, b"\x01" + struct.pack("<IQ", 60, n) + random.Random(n).randbytes(60)) for n in range(1, 9)
    ],
}


def test_plain_messages_that_begin_like_encrypted_ones_are_not() -> None:
    for case in PLAIN:
        assert not may_be_encrypted(PLAIN[case]), case
        for end in (1, 2, 3, 4):
            assert not may_be_encrypted(PLAIN[case][:end]) or "protocol" in case, case
