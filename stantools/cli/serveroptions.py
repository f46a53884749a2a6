"""How the server whose behaviour is predicted would be started: shared by forecast and truncate-bad-eof."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import GivenLimits
from stantools.errors import UsageError

if TYPE_CHECKING:
    from stantools.format.crc import Crc
    from stantools.inspection.forecast import OtherUser, ServerOptions
    from stantools.store.directory import Datastore
    from stantools.store.options import ReadOptions

# The versions are those of `inspection.forecast.SERVER_VERSIONS`; that module is too big to import for --help.
_VERSIONS = ("0.23.2", "0.25.6")

server_version_option = click.option(
    "--server-version",
    type=click.Choice(_VERSIONS),
    help=f"Which server; {_VERSIONS[0]} if not given.",
)
server_user_option = click.option(
    "--server-user", metavar="USER", help="Name or number of the user that runs the server, if not you."
)


def server_options(
    store: Datastore,
    crc: Crc,
    reading: ReadOptions,
    *,
    version: str | None,
    limits: GivenLimits | None = None,
    cluster_id: str | None = None,
    read_buffer: int | None = None,
    user: str | None = None,
    workers: int = 2,
) -> ServerOptions:
    """Puts together how the server is started; what is not given is the server's default.

    The cluster id is the store's own if it is not given: a start with another one fails anyway.
    """
    from stantools.inspection.forecast.options import own_server
    from stantools.store.limits import ChannelLimits

    options = own_server(store, crc, reading, version=version or _VERSIONS[0], workers=workers)
    if limits:
        options = replace(options, limits=limits.over(ChannelLimits()))
    if read_buffer is not None:
        options = replace(options, read_buffer_size=read_buffer)
    if cluster_id:
        options = replace(options, cluster_id=cluster_id)
    return replace(options, access=_user(user)) if user else options


def _user(name: str) -> OtherUser:
    import grp
    import pwd

    from stantools.inspection.forecast import OtherUser

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError as problem:
        if name.isdecimal():
            return OtherUser(int(name))
        raise UsageError(f"there is no user {console.escape(name)}", "give the user's number") from problem
    groups = {each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem}
    return OtherUser(entry.pw_uid, frozenset({entry.pw_gid, *groups}))
