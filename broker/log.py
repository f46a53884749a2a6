"""Names of the loggers and the level below debug; how lines look is up to `broker.config.logs`."""

from __future__ import annotations

import logging
from typing import Final

TRACE: Final = 5

#: Everything of the NATS server; everything of the streaming server, whose lines begin with `STREAM: `.
NATS: Final = logging.getLogger("broker.nats")
STREAMING: Final = logging.getLogger("broker.streaming")
