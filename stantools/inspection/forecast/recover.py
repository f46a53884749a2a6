"""A whole start of the server, in its order (filestore.md sections 7.1, 7.3 and 7.8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from stantools.escaping import text
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Change, DeleteChange, WriteChange, by_path
from stantools.inspection.forecast.channel import RecoveredChannel, open_clients, recover_channels, recover_clients
from stantools.inspection.forecast.channel_forecast import Forecast
from stantools.inspection.forecast.slices import RecoveryContext
from stantools.store.directory import SERVER_FILE, WITNESS_FILE, Datastore
from stantools.store.mapping import mapped
from stantools.store.serverinfo import (
    SERVER_FILE_WHEN_OPENED,
    ServerFile,
    ServerOutcome,
    encode_server_file,
    new_server_info,
    read_server_info,
)

_WITNESS_THERE = "file store should not be opened consecutively with the TruncateUnexpectedEOF option set to true"
_NOT_RECOVERED = (
    "Server information was not recovered, however channels are present. Will initialize server and restart recovery!"
)


class _StartFailedError(Exception):
    """The server does not start; the message is its error."""


@dataclass
class ForecastStart:
    """The recovery of a store: the forecast so far, and the channels, whose messages are not looked up yet."""

    forecast: Forecast
    channels: list[RecoveredChannel] = field(default_factory=list)


def recover(recovery: RecoveryContext, store: Datastore) -> ForecastStart:
    """Forecasts everything up to the point where the server has recovered its state, or given up."""
    steps = _RecoverySteps(recovery, store)
    forecast = steps.start.forecast
    try:
        steps.run()
    except _StartFailedError as fatal:
        forecast.error = str(fatal)
        forecast.exit_code = 1
        forecast.log.append(f"[FTL] STREAM: Failed to start: {fatal}")
        forecast.recovered = False
        forecast.clients = {}
        forecast.server_info = None
        steps.start.channels = []
    else:
        forecast.starts = True
    forecast.changes = by_path(steps.changes)
    return steps.start


class _RecoverySteps:
    def __init__(self, recovery: RecoveryContext, store: Datastore) -> None:
        self._recovery = recovery
        self._store = store
        self.start = ForecastStart(Forecast(recovery.options.version, recovery.truncate))
        self.changes: list[Change] = []

    def run(self) -> None:
        forecast, store = self.start.forecast, self._store
        self._witness()
        forecast.log.append(report.info("Recovering the state..."))
        server = self._server_file()
        if server.outcome is ServerOutcome.ABSENT:
            self._write_server_file()
            forecast.version_matters = bool(store.server_channel_names)
            if not (self._recovery.options.since_0_25 and store.server_channel_names):
                forecast.log.append(report.info("No recovered state"))
                return
            forecast.log.append(report.warning(_NOT_RECOVERED))
            self.changes += forecast.run_changes.values()
            forecast.run_changes = {}
            forecast.server_info = new_server_info(self._recovery.options.cluster_id)
        else:
            forecast.server_info = server.info
        self._clients()
        self._channels()
        info, configured = self.start.forecast.server_info, self._recovery.options.cluster_id
        assert info is not None
        if text(info.cluster_id) != configured:
            raise _StartFailedError(report.cluster_id_error(configured, text(info.cluster_id)))
        if server.rewritten:
            self._write_server_file()
        forecast.recovered = True
        forecast.log.append(report.info(f"Recovered {len(self.start.channels)} channel(s)"))

    def _witness(self) -> None:
        path = self._store.path / WITNESS_FILE
        if not self._recovery.truncate:
            if self._store.witness:
                self.changes.append(Change(WITNESS_FILE, path.stat().st_size, None, DeleteChange()))
            return
        if self._store.witness:
            raise _StartFailedError(_WITNESS_THERE)
        if denied := self._recovery.denied(WITNESS_FILE, None):
            raise _StartFailedError(denied)
        self.changes.append(Change(WITNESS_FILE, None, 0, WriteChange(b"")))

    def _server_file(self) -> ServerFile:
        """Opens server.dat and clients.dat and reads server.dat."""
        recovery, store, log = self._recovery, self._store, self.start.forecast.log
        quoted = quote(SERVER_FILE_WHEN_OPENED)
        if denied := recovery.denied(SERVER_FILE, store.server):
            raise _StartFailedError(f"unable to recover server file {quoted}: {denied}")
        if store.server is None:
            self.changes.append(Change(SERVER_FILE, None, FILE_HEADER_SIZE, WriteChange(FILE_HEADER_BYTES)))
            server = read_server_info(None, recovery.crc)
        else:
            with mapped(store.server) as buffer:
                server = read_server_info(buffer, recovery.crc)
        if server.at_open:
            raise _StartFailedError(f"unable to recover server file {quoted}: {server.error}")
        error, changes = open_clients(recovery, store.clients)
        self.changes += changes
        if error:
            raise _StartFailedError(error)
        if server.outcome is ServerOutcome.REFUSED:
            quoted = quote(recovery.full_name(SERVER_FILE))
            if server.reported:
                log.append(report.error(f"Server file {quoted} corrupted: {server.error}"))
                log.append(report.error("Follow instructions in documentation in order to recover from this"))
            raise _StartFailedError(f"unable to recover server file {quoted}: {server.error}")
        return server

    def _write_server_file(self) -> None:
        """The server writes a new identity, after the recovery."""
        recovery, store = self._recovery, self._store
        content = encode_server_file(new_server_info(recovery.options.cluster_id), recovery.crc)
        before = store.server.stat().st_size if store.server is not None else None
        self.start.forecast.run_changes[SERVER_FILE] = Change(SERVER_FILE, before, len(content), WriteChange(content))

    def _clients(self) -> None:
        forecast = self.start.forecast
        clients = recover_clients(self._recovery, self._store.clients)
        forecast.log += clients.log
        self.changes += clients.changes
        if clients.error:
            raise _StartFailedError(clients.error)
        forecast.clients = dict(clients.state.clients)

    def _channels(self) -> None:
        for channel in recover_channels(self._recovery, self._store):
            self.start.forecast.log += channel.log
            self.start.forecast.version_matters |= channel.version_matters
            self.changes += channel.changes
            if channel.error:
                raise _StartFailedError(channel.error)
            channel.log, channel.changes = [], []
            self.start.channels.append(channel)
