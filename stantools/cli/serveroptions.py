"""How the server whose behaviour is predicted would be started: shared by forecast, doctor and truncate-bad-eof."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.errors import UsageError
from stantools.options import CLUSTER_ID, SIZE, WORKERS, option

if TYPE_CHECKING:
    from stantools.format.crc import Crc
    from stantools.inspection.forecast import OtherUser, ServerOptions
    from stantools.store.directory import Datastore
    from stantools.store.limits import StoreLimits
    from stantools.store.options import ReadOptions

# The versions are those of `inspection.forecast.SERVER_VERSIONS`; that module is too big to import for --help.
_VERSIONS = ("0.23.2", "0.25.6")


@dataclass(frozen=True)
class Server:
    """How the server is started; what is not given is the server's default."""

    server_version: str | None = option(f"Which server; {_VERSIONS[0]} if not given.", choices=_VERSIONS)
    cluster_id: str | None = CLUSTER_ID.field(help="The server's -cluster_id; the store's own if not given.")
    read_buffer: int | None = SIZE.field(help="The server's -file_read_buffer_size; 0 is off.")
    server_user: str | None = option("Name or number of the user that runs the server, if not you.", metavar="USER")
    workers: int = WORKERS.field()
    limits: StoreLimits | None = None

    def options(self, store: Datastore, crc: Crc, reading: ReadOptions) -> ServerOptions:
        """Returns how the server is started on a store.

        The cluster id is the store's own if it is not given: a start with another one fails anyway.
        """
        from stantools.inspection.forecast.options import own_server

        version = self.server_version or _VERSIONS[0]
        options = own_server(store, crc, reading, version=version, workers=self.workers)
        if self.limits:
            options = replace(options, limits=self.limits)
        if self.read_buffer is not None:
            options = replace(options, read_buffer_size=self.read_buffer)
        if self.cluster_id:
            options = replace(options, cluster_id=self.cluster_id)
        return replace(options, access=_user(self.server_user)) if self.server_user else options


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
