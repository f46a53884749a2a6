"""The settings file: keys and theme; what is wrong in it is told and skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.store.sample import SampleOptions, write_sample
from tests.tui.conftest import LARGE, screen_text, until
from tui.app import bindings
from tui.keys import DARK, LIGHT, read_settings
from tui.screens.findings import FindingsScreen


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return path


def test_keys_and_theme(tmp_path: Path) -> None:
    text = '[keys]\n"app.quit" = "ctrl+x,q"\nfindings.copy = "c"\n[display]\ntheme = "light"\n'
    settings = read_settings(write(tmp_path, text))
    assert dict(settings.keymap) == {"app.quit": "ctrl+x,q", "findings.copy": "c"}
    assert settings.theme == LIGHT
    assert settings.problems == ()
    assert read_settings(write(tmp_path, '[display]\ntheme = "dark"')).theme == DARK
    assert read_settings(write(tmp_path, '[display]\ntheme = "nord"')).theme == "nord"


def test_no_file_is_no_problem_unless_it_was_named(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none").problems == ()
    (problem,) = read_settings(tmp_path / "none", must_exist=True).problems
    assert "no such file" in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[keys\n", "is not TOML"),
        ("[colors]\n", "unknown section [colors]"),
        ("[keys]\n'app.quit' = 3\n", "keys of app.quit must be a text"),
        ("[keys]\n'app.quit' = ' '\n", "keys of app.quit must be a text"),
        ("[display]\ntheme = 3\n", "the theme must be a text"),
    ],
)
def test_what_is_wrong_is_told(text: str, words: str, tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, text))
    (problem,) = settings.problems
    assert words in problem
    assert settings.theme == ""
    assert not settings.keymap


def test_odd_files(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not TOML" in read_settings(path).problems[0]
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in read_settings(tmp_path / "folder").problems[0]
    assert read_settings(write(tmp_path, "keys = 3\ndisplay = 4\n")).theme == ""


@given(text=st.text(max_size=80))
def test_any_text_gives_settings(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, errors="surrogateescape" if text.isprintable() else "replace")
    read_settings(path)


def test_ids_of_bindings_are_told_apart() -> None:
    found = [(owner, binding) for owner, binding in bindings() if binding.id]
    assert all(binding.description for _, binding in found)
    # The same id may stand in views of a kind, so that one setting changes them all; within a view it is one action.
    for owner, binding in found:
        same = {each.action for other, each in found if other is owner and each.id == binding.id}
        assert same == {binding.action}


async def test_a_remapped_key_of_a_view_works_and_is_in_its_help(tmp_path: Path, browse: Any) -> None:
    store = tmp_path / "store"
    write_sample(store, SampleOptions(channels=1, messages=3))
    settings = read_settings(write(tmp_path, '[keys]\n"findings.group" = "ctrl+g"\n"no.such" = "x"\n'))

    async with browse(store, size=LARGE, settings=settings) as pilot:
        assert "unknown binding no.such" in screen_text(pilot.app)
        await pilot.press("6")
        await until(pilot, lambda: isinstance(pilot.app.screen, FindingsScreen))
        screen: FindingsScreen = pilot.app.screen
        before = screen.rows.grouping
        await pilot.press("b")
        assert screen.rows.grouping is before
        await pilot.press("ctrl+g")
        assert screen.rows.grouping is not before
        await pilot.press("question_mark")
        await until(pilot, lambda: "findings.group" in screen_text(pilot.app))
        line = next(line for line in screen_text(pilot.app).splitlines() if "findings.group" in line)
        assert "^g" in line or "ctrl+g" in line
