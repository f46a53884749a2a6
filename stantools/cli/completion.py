"""Shell completion of what is in a store: channel names.

Completion runs at every press of the tab key: it lists one directory, opens no file, and stays silent about
everything that is wrong.
"""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from stantools.errors import StantoolsError

_ENOUGH = 500


def complete_channel(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers the channels of the store that is named earlier on the line."""
    # With an option that still lacks its value, click leaves the store among the words it could not place.
    store = ctx.params.get("store") or next(iter(ctx.args), None)
    if not store:
        return []
    from stantools.store.directory import open_datastore

    try:
        names = open_datastore(Path(store)).channel_names
    except StantoolsError:
        return []
    fitting = [name for name in names if name.startswith(incomplete) and name.isprintable()]
    return [CompletionItem(name) for name in fitting[:_ENOUGH]]
