"""Prediction of what the real server would do with a store if it started now. Nothing is changed.

    forecast(store, ServerOptions(), truncate=False)      one start
    forecast_both(store, ServerOptions())                 without and with the truncate option, reading once
    forecast_versions(store, ServerOptions())             the same, and for other versions with another outcome

A forecast follows the server's own steps (filestore.md section 7) on the files as they are. The server's changes become
planned changes (`changes`), which `recovery.truncate` can apply.

    server_options    options of the server, and permissions of its user
    recover           a whole start: witness file, server.dat, clients.dat, channels
    channel           the slices, limits and subscriptions of each channel, combined in the server's order
    slices            one slice: index good, cut or rebuilt, data file cut or refused
    lookup            which messages can be read, with the effects of read-ahead
    sound_slices      slices that a survey proved: a forecast after it does not read them again
    channel_forecast  the outcome; what a subscriber receives, where delivery stalls
    startup           messages sent to recovered subscriptions at once
    losses            intact data that the start destroys: `Forecast.destroys`

`inspection.advice` sums it up in one sentence.
"""

from __future__ import annotations

from stantools.inspection.forecast.changes import (
    AppendChange,
    Change,
    CutChange,
    DeleteChange,
    RebuildIndex,
    WriteChange,
)
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Forecast, Harm, Lookups, Loss
from stantools.inspection.forecast.forecaster import forecast, forecast_both, forecast_versions
from stantools.inspection.forecast.server_options import (
    SERVER_VERSIONS,
    CurrentUser,
    FileAccess,
    OtherUser,
    ServerOptions,
)

__all__ = [
    "SERVER_VERSIONS",
    "AppendChange",
    "Change",
    "ChannelForecast",
    "CurrentUser",
    "CutChange",
    "DeleteChange",
    "FileAccess",
    "Forecast",
    "Harm",
    "Lookups",
    "Loss",
    "OtherUser",
    "RebuildIndex",
    "ServerOptions",
    "WriteChange",
    "forecast",
    "forecast_both",
    "forecast_versions",
]
