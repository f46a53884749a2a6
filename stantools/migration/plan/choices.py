"""What users choose for a plan."""

from __future__ import annotations

import enum


class LoadMethod(enum.StrEnum):
    ARCHIVE = "archive"  #: a stream archive that a server restores: exact in everything
    PUBLISH = "publish"  #: single messages: new timestamps, the old ones in headers


class DurablesChoice(enum.StrEnum):
    PULL = "pull"
    PUSH = "push"
    NONE = "none"


class OriginHeaders(enum.StrEnum):
    """Headers with channel, sequence and time of the message in the store."""

    AUTO = "auto"  #: only if the stream itself cannot hold them (published or renumbered)
    ON = "on"
    OFF = "off"
