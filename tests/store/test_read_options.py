"""Finding out the CRC polynomial, and the era of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format.crc import CASTAGNOLI, IEEE
from stantools.store.damage import DAMAGES
from stantools.store.directory import open_datastore
from stantools.store.mapping import mapped
from stantools.store.read_options import ReadOptions, file_samples, polynomial_name, resolve_crc, resolve_file_crc
from stantools.store.sample import SampleOptions, write_sample
from stantools.store.serverinfo import refuse_0_1
from tests.conftest import cases_by_kind

UNUSUAL = 0x12345678
ANY = ReadOptions()


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden_stores(golden: Path, case: str) -> None:
    store = open_datastore(golden / case / "datastore")
    assert resolve_crc(store, ANY).polynomial == (CASTAGNOLI if case == "crc_castagnoli" else IEEE)


@pytest.mark.parametrize("polynomial", [IEEE, CASTAGNOLI, UNUSUAL, 0x80000001])
@pytest.mark.parametrize("damage", [(), ("damaged-server",), ("lost-server", "lost-clients"), ("garbage-middle",)])
def test_any_polynomial_is_found_in_any_state(tmp_path: Path, polynomial: int, damage: tuple[str, ...]) -> None:
    write_sample(tmp_path / "store", SampleOptions(messages=20, polynomial=polynomial, damage=damage))
    store = open_datastore(tmp_path / "store")
    assert resolve_crc(store, ANY).polynomial == polynomial
    assert resolve_crc(store, ReadOptions(UNUSUAL)).polynomial == UNUSUAL


def test_no_damage_hides_the_polynomial(tmp_path: Path) -> None:
    for damage in DAMAGES:
        store = tmp_path / damage
        write_sample(store, SampleOptions(messages=20, polynomial=UNUSUAL, damage=(damage,)))
        assert resolve_crc(open_datastore(store), ANY).polynomial == UNUSUAL, damage


@pytest.mark.parametrize("polynomial", [IEEE, CASTAGNOLI, 0xD419CC15])
def test_single_files(tmp_path: Path, polynomial: int) -> None:
    write_sample(tmp_path / "store", SampleOptions(messages=20, polynomial=polynomial))
    for path in (tmp_path / "store").rglob("*.*"):
        if path.is_file() and path.name != "server.dat":  # a single record does not tell
            with mapped(path) as buffer:
                assert resolve_file_crc(path, buffer, ANY).polynomial == polynomial, path


@pytest.mark.parametrize("name", ["server.dat", "clients.dat", "subs.dat", "msgs.1.dat", "msgs.1.idx"])
def test_anything_can_be_sampled(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (b"", b"\x01", b"\x01\0\0\0", bytes(100), b"\xff" * 1000, b"\x01\0\0\0\xff\xff\xff\x7f"):
        list(file_samples(name, memoryview(content)))
        path.write_bytes(content)
        with mapped(path) as buffer:
            resolve_file_crc(path, buffer, ANY)


def test_names() -> None:
    assert polynomial_name(IEEE) == "ieee (3988292384)"
    assert polynomial_name(UNUSUAL) == "305419896 (0x12345678)"


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(ReadOptions(encryption_key=b"secret"))


@pytest.mark.parametrize(
    ("name", "content", "old"),
    [
        ("server.dat", b"\x01\0\0\0\x0a\0\0\0\x0a\x02id\x12\x04disc", True),
        ("server.dat", b"\x01\0\0\0", False),
        ("server.dat", b"", False),
        ("clients.dat", b"\x01\0\0\0A me _INBOX.1\r\n", True),
        ("clients.dat", b"\x01\0\0\0D me\r\n", True),
        ("clients.dat", b"\x01\0\0\0A me\r\n", False),
        ("clients.dat", b"\x01\0\0\0", False),
    ],
)
def test_release_0_1(tmp_path: Path, name: str, content: bytes, old: bool) -> None:
    (tmp_path / name).write_bytes(content)
    store = open_datastore(tmp_path)
    if old:
        with pytest.raises(StoreUnreadableError, match="too old"):
            refuse_0_1(store)
    else:
        refuse_0_1(store)
