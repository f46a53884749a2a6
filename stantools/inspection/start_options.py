"""Options of the server whose start is predicted, as users give them. Kept small: `--help` imports it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stantools.errors import UsageError
from stantools.escaping import escape
from stantools.options import CLUSTER_ID, SIZE, WORKERS, option

if TYPE_CHECKING:
    from stantools.inspection.forecast import OtherUser, ServerOptions
    from stantools.store.directory import Datastore
    from stantools.store.limits import StoreLimits

#: As `inspection.forecast.SERVER_VERSIONS`.
SERVER_VERSIONS = ("0.23.2", "0.25.6")
#: As `inspection.stream_forecast.versions.SERVER_RULES`.
STREAM_VERSIONS = ("2.9", "2.10", "2.11", "2.12", "2.14", "2.15")


@dataclass(frozen=True)
class StartOptions:
    """Options of the server whose behaviour is predicted; the default is the server's own."""

    server_version: str | None = option(
        f"The server's version; default: {SERVER_VERSIONS[0]}.", choices=SERVER_VERSIONS
    )
    cluster_id: str | None = CLUSTER_ID.field(help="The server's -cluster_id; default: the store's own.")
    read_buffer: int | None = SIZE.field(help="The server's -file_read_buffer_size; 0 is off.")
    server_user: str | None = option("Name or number of the user that runs the server; default: you.", metavar="USER")
    workers: int = WORKERS.field()
    limits: StoreLimits | None = None

    def server(self, store: Datastore) -> ServerOptions:
        """Returns the server's options for a store.

        The cluster id defaults to the store's own: a start with another one fails anyway.
        """
        from stantools.inspection.forecast.server_options import own_server

        given: dict[str, Any] = {
            "limits": self.limits or None,
            "read_buffer_size": self.read_buffer,
            "cluster_id": self.cluster_id or None,
            "access": _user(self.server_user) if self.server_user else None,
        }
        version = self.server_version or SERVER_VERSIONS[0]
        if version in STREAM_VERSIONS:
            raise UsageError(
                f"{version} is a version of nats-server, which does not open stores of NATS Streaming",
                f"choose {' or '.join(SERVER_VERSIONS)}",
            )
        usual = own_server(store, version=version, workers=self.workers)
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class AnyStartOptions(StartOptions):
    """The same, also for servers of JetStream directories."""

    server_version: str | None = option(
        f"The server's version; default: {SERVER_VERSIONS[0]}; for a JetStream directory the one that seems to have "
        "written it, and the newest.",
        choices=SERVER_VERSIONS + STREAM_VERSIONS,
    )


def _user(name: str) -> OtherUser:
    import grp
    import pwd

    from stantools.inspection.forecast import OtherUser

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError as problem:
        if name.isdecimal():
            return OtherUser(int(name))
        raise UsageError(f"there is no user {escape(name)}", "give the user's number") from problem
    groups = {each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem}
    return OtherUser(entry.pw_uid, frozenset({entry.pw_gid, *groups}))
