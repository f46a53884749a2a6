"""A whole start of the server, in its order (filestore specification, sections 7.1, 7.3 and 7.8)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Append, Change, Delete, Write, by_path
from stantools.inspection.forecast.channel import RecoveredChannel, in_order, recover_channels
from stantools.inspection.forecast.datascan import DataScan
from stantools.inspection.forecast.delivery import complete
from stantools.inspection.forecast.logfiles import open_clients, recover_clients
from stantools.inspection.forecast.lookup import lookup_slice, unite, wanted_of_slices
from stantools.inspection.forecast.model import (
    ChannelForecast,
    Forecast,
    Lookups,
    Progress,
    ServerOptions,
    SubscriptionForecast,
    text,
)
from stantools.inspection.forecast.slices import Recovery
from stantools.inspection.forecast.startup import remove_ghosts, start_delivery
from stantools.store.directory import SERVER_FILE, SUBS_FILE, WITNESS_FILE, Datastore
from stantools.store.mapping import mapped
from stantools.store.serverinfo import ServerFile, ServerOutcome, encode_server_file, new_server_info, read_server_info
from stantools.store.sublog import classify
