"""Contexts of the official `nats` command: named sets of options for connecting, in files.

~/.config/nats/context/NAME.json    one context; XDG_CONFIG_HOME, where set, takes the place of ~/.config
~/.config/nats/context.txt          the name of the one that is selected
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnreadableError, UsageError
from stantools.home import expanded, settings_directory
from stantools.nats.connect_options import ConnectOptions, split_servers
from stantools.secret import read_secret

_TEXTS = {
    "user": "user",
    "password": "password",
    "token": "token",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "api_prefix",
    "inbox_prefix": "inbox_prefix",
}
_FILES = {"nkey": "nkey", "creds": "creds", "ca": "tls_ca", "cert": "tls_cert", "key": "tls_key"}
#: unsupported members, with their meaning
_UNSUPPORTED = {
    "nsc": "credentials looked up by nsc",
    "socks_proxy": "a SOCKS proxy",
    "user_jwt": "a JWT without a file",
    "user_seed": "a seed without a file",
    "windows_cert_store": "the Windows certificate store",
}
#: Members for login: given on the command line, they replace all of the context's.
_LOGIN = ("user", "password", "token", "nkey", "creds")


def context_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return settings_directory(environment) / "nats"


def context_names(folder: Path) -> list[str]:
    try:
        return sorted(path.stem for path in (folder / "context").iterdir() if path.suffix == ".json")
    except OSError:  # none were ever made
        return []


def selected_context(folder: Path) -> str | None:
    try:
        name = (folder / "context.txt").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):  # as if none was selected
        return None
    return name if name in context_names(folder) else None


def read_context(name: str, folder: Path) -> ConnectOptions:
    """Reads a context, by its name in `folder` or by the path of a file."""
    path = _find(name, folder)
    try:
        content = json.loads(read_secret(path))
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise StoreUnreadableError(f"{path}: is not a context: expected a JSON object", _REMEDY) from None
    for member, meaning in _UNSUPPORTED.items():
        if content.get(member):
            raise UsageError(
                f"{path}: the context {name} uses {meaning} ({member}), which stantools does not support",
                "give the options on the command line, with --creds, --nkey or --user",
            )
    found: dict[str, Any] = {"context": name, "servers": split_servers([_text(path, content, "url") or ""])}
    for member, option in _TEXTS.items():
        found[option] = _text(path, content, member)
    for member, option in _FILES.items():
        text = _text(path, content, member)
        found[option] = expanded(text) if text else None
    found["tls_first"] = content.get("tls_first") is True
    return ConnectOptions(**found)


def over(given: ConnectOptions, base: ConnectOptions) -> ConnectOptions:
    """Returns the given options, completed by those of a context.

    The context's credentials count only if the user gave none.
    """
    unset = ConnectOptions()
    login_given = any(getattr(given, name) is not None for name in _LOGIN)
    taken = {
        each.name: getattr(base, each.name)
        for each in fields(ConnectOptions)
        if getattr(given, each.name) == getattr(unset, each.name) and not (login_given and each.name in _LOGIN)
    }
    if given.domain or given.api_prefix:
        taken |= {"domain": given.domain, "api_prefix": given.api_prefix}
    if given.tls_insecure:
        taken["tls_ca"] = given.tls_ca
    return replace(given, **taken)


_REMEDY = "see: nats context ls"


def _find(name: str, folder: Path) -> Path:
    if name.endswith(".json"):
        return Path(name)
    if not name or "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise UsageError(f"{name!r} is not the name of a context", _REMEDY)
    path = folder / "context" / f"{name}.json"
    if not path.is_file():
        known = context_names(folder)
        there = f"there are {', '.join(known)}" if known else f"there are none in {folder}"
        raise UsageError(f"there is no context {name}; {there}", _REMEDY)
    return path


def _text(path: Path, content: Mapping[str, Any], member: str) -> str | None:
    value = content.get(member)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise StoreUnreadableError(f"{path}: is not a context: {member} is not a string", _REMEDY)
    return value
