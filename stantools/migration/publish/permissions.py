"""Finding out what the user may do before anything is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stantools.migration.target.errors import ApiError, PermissionDeniedError

if TYPE_CHECKING:
    from stantools.migration.publish.filling import Filling
    from stantools.migration.target.jetstream import JetStream


async def probe(js: JetStream, name: str, filling: Filling, *, consumers: bool) -> None:
    """Sends the requests that will be needed later, for a stream that is not there: only a refusal can come back.

    Args:
        js: JetStream.
        name: The stream, which must not exist.
        filling: What is going to be done.
        consumers: Consumers will be made, too.

    Raises:
        PermissionDeniedError: The user may not send one of them.
        TargetError: The server does not answer.
    """
    requests: list[tuple[str, Mapping[str, Any]]] = []
    if filling.lacking:
        requests.append((f"STREAM.MSG.DELETE.{name}", {"seq": 0}))
    if filling.needs_purge:
        requests.append((f"STREAM.PURGE.{name}", {"seq": 1}))
    if filling.needs_update:
        # Another writer may create the stream at this moment: a request with another name in it is refused in any case.
        requests.append((f"STREAM.UPDATE.{name}", {"name": f"{name}-probe"}))
    if consumers:
        requests.append((f"CONSUMER.INFO.{name}.probe", {}))
    for operation, body in requests:
        try:
            await js.api(operation, body)
        except ApiError:
            continue  # permitted: there is no such stream
        except PermissionDeniedError:
            if not operation.startswith("STREAM.PURGE.") or not filling.begin_by_configuration():
                raise
