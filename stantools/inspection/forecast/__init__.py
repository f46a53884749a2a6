"""What the real server does with a store if it is started now, predicted without changing anything.

    forecast(store, ServerOptions(), truncate=False)      one start
    forecast_both(store, ServerOptions())                 without and with the truncate option, reading once
    forecast_versions(store, ServerOptions())             the same, and for other versions that would do otherwise

A forecast goes through the server's own steps (filestore.md section 7) on the files as they are. What the
server would change is noted as planned changes (`changes`), which `recovery.truncate` can carry out.

    options       how the server would be started, and what its user may do
    recover       a whole start: witness file, server.dat, clients.dat, channels
    channel       the slices, limits and subscriptions of each channel, put together in the server's order
    slices        one slice: index good, cut or rebuilt, data file cut or refused
    lookup        which messages can be read, with the effects of reading ahead
    model         the outcome; what a subscriber gets, where it stalls
    startup       what is sent to recovered subscriptions at once
    behind        what is intact and destroyed: `Forecast.destroys`

`inspection.advice` says all of it in one sentence.
"""

from __future__ import annotations

from stantools.inspection.forecast.changes import Append, Change, Cut, Delete, RebuildIndex, Write
from stantools.inspection.forecast.forecaster import forecast, forecast_both, forecast_versions
from stantools.inspection.forecast.model import ChannelForecast, Forecast, Harm, Lookups, Loss
from stantools.inspection.forecast.options import SERVER_VERSIONS, Access, CurrentUser, OtherUser, ServerOptions

__all__ = [
    "SERVER_VERSIONS",
    "Access",
    "Append",
    "Change",
    "ChannelForecast",
    "CurrentUser",
    "Cut",
    "Delete",
    "Forecast",
    "Harm",
    "Lookups",
    "Loss",
    "OtherUser",
    "RebuildIndex",
    "ServerOptions",
    "Write",
    "forecast",
    "forecast_both",
    "forecast_versions",
]
