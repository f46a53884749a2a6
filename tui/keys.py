"""The user's settings: keys, theme and mouse.

A TOML file: `[keys]` assigns keys to the ids of bindings (`"app.quit" = "ctrl+x,q"`; the help page lists the ids).
`[display]` sets a `theme`, and `mouse = false` leaves the mouse to the terminal. Errors in the file are reported and
skipped, because the browser must always start.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Our own themes; any theme of Textual can be named as well.
DARK, LIGHT = "stantools-dark", "stantools-light"


@dataclass(frozen=True)
class KeySettings:
    keymap: Mapping[str, str] = field(default_factory=dict)  #: binding id -> keys, separated by commas
    theme: str = ""  #: name of a theme; "" for the default
    mouse: bool = True  #: clicks and the wheel work; the terminal then needs a key to select text
    problems: tuple[str, ...] = ()  #: messages about unusable settings


def read_settings(path: Path, *, must_exist: bool = False) -> KeySettings:
    """Reads a settings file. With `must_exist` a missing file is a problem."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return KeySettings(problems=(f"{path}: no such file",) if must_exist else ())
    except OSError as error:
        return KeySettings(problems=(f"{path}: cannot be read: {error.strerror}",))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return KeySettings(problems=(f"{path}: is not TOML: {error}",))
    return _settings(values, path)


def _settings(values: dict[str, Any], path: Path) -> KeySettings:
    problems = [f"{path}: unknown section [{name}]" for name in values if name not in ("keys", "display")]
    keymap: dict[str, str] = {}
    keys = values.get("keys", {})
    # TOML reads an id without quotes as a table: app.quit is {"app": {"quit": …}}.
    for name, given in _flat(keys) if isinstance(keys, dict) else ():
        if isinstance(given, str) and given.strip():
            keymap[name] = given
        else:
            problems.append(f"{path}: keys of {name} must be a text such as {'ctrl+x,q'!r}")
    display = values.get("display", {})
    theme = display.get("theme", "") if isinstance(display, dict) else ""
    if not isinstance(theme, str):
        problems.append(f"{path}: the theme must be a text such as {LIGHT!r}")
        theme = ""
    mouse = display.get("mouse", True) if isinstance(display, dict) else True
    if not isinstance(mouse, bool):
        problems.append(f"{path}: mouse must be true or false")
        mouse = True
    return KeySettings(keymap, {"dark": DARK, "light": LIGHT}.get(theme, theme), mouse, tuple(problems))


def _flat(table: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in table.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
    return found
