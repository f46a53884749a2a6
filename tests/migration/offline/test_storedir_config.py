from __future__ import annotations

from pathlib import Path

import pytest

from stantools.store.running_servers import store_setting


def _setting(tmp_path: Path, text: str, **environment: str):
    file = tmp_path / "server.conf"
    file.write_text(text)
    return store_setting(file, lambda name: environment.get(name, ""))


@pytest.mark.parametrize(
    "text",
    [
        'jetstream { store_dir: "/data/js" }',
        "jetstream: {store_dir=/data/js, max_mem: 1G}",
        "jetstream {\n  store_dir /data/js\n}",
        '{"jetstream": {"store_dir": "/data/js"}}',
        "jetstream { storedir: '/data/js'; }",
        "jetstream { # here\n  Store_Dir: /data/js # there\n}",
        'DATA: "/data/js"\njetstream { store_dir: $DATA }',
        "jetstream { store_dir: $FROM_OUTSIDE }",
    ],
)
def test_store_dir_is_found(tmp_path: Path, text: str) -> None:
    setting = _setting(tmp_path, text, FROM_OUTSIDE="/data/js")
    assert setting.places == ("/data/js",)
    assert setting.jetstream
    assert not setting.unknown


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("port: 4222", False),
        ("jetstream: enabled", True),
        ("jetstream: true", True),
        ("jetstream: disabled", False),
        ("jetstream = false", False),
        ("jetstream {}", True),
        ("jetstream {\n max_file: 1G }", True),
        ("# jetstream: enabled\n// jetstream {}\nport: 1", False),
        ('server_name: "my jetstream"', False),
    ],
)
def test_jetstream_without_store_dir(tmp_path: Path, text: str, enabled: bool) -> None:
    setting = _setting(tmp_path, text)
    assert setting.places == ()
    assert setting.jetstream is enabled


def test_comments_do_not_count_and_urls_are_no_comments(tmp_path: Path) -> None:
    setting = _setting(tmp_path, 'x: "nats://a:1" jetstream {\n// store_dir: /old\n store_dir: "/new" }')
    assert setting.places == ("/new",)


def test_includes_are_followed(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/js.conf").write_text("include '../server.conf'\njetstream { store_dir: /data/js }")
    assert _setting(tmp_path, "include more/js.conf").places == ("/data/js",)
    absolute = f'include "{tmp_path}/more/js.conf"'
    assert _setting(tmp_path, absolute).places == ("/data/js",)


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    assert "$NOWHERE" in _setting(tmp_path, "jetstream { store_dir: $NOWHERE }").unknown
    assert "missing.conf" in _setting(tmp_path, "include missing.conf").unknown
    assert store_setting(tmp_path / "none.conf", lambda name: "").unknown
