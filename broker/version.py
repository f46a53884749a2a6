"""What the broker says it is compatible with: shown by `--version`, INFO, logs and monitoring."""

from typing import Final

#: The streaming server whose behaviour is followed.
STREAMING_VERSION: Final = "0.25.6"
#: The NATS server that it embeds.
NATS_VERSION: Final = "2.9.24"
