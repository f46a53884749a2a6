"""Every key of the browser, for the settings and for the page of keys."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from textual.app import App
from textual.binding import Binding
from textual.widget import Widget

import tui.screens
import tui.widgets


def bindings() -> Iterator[tuple[type, Binding]]:
    """Gives every binding that has an id, with the class that it belongs to; every screen is imported for that."""
    for owner in _owners():
        for binding in Binding.make_bindings(owner.__dict__.get("BINDINGS", [])):
            if binding.id:
                yield owner, binding


def known_ids() -> frozenset[str]:
    """Returns the ids of all bindings."""
    return frozenset(binding.id for _, binding in bindings() if binding.id)


def _owners() -> Iterator[type]:
    names = ["tui.app"]
    for package in (tui.screens, tui.widgets):
        names += sorted(each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))
    for name in names:
        module = importlib.import_module(name)
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == name and issubclass(found, (App, Widget)):
                yield found
