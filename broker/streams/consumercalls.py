"""Requests about consumers and their answers (jetstream-server.md section 10)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.streams.api_errors import RequestError, invalid_json, unavailable
from broker.streams.consumers import ConsumerRegistry, read_request
from broker.streams.requests import expect_empty, members, parse, time_text
from stantools.streamfiles.stream_config import INT, STRING, TIME

if TYPE_CHECKING:
    from broker.streams.account import Account
    from broker.streams.consumer import Consumer
    from broker.streams.stream import Stream

_NAMES: Final = 1024
_INFOS: Final = 256
_PAGE: Final[Mapping[str, str]] = {"offset": INT}
#: members of a failed answer to a list request
_NO_PAGE: Final[Mapping[str, Any]] = {"total": 0, "offset": 0, "limit": 0, "consumers": []}
_PAUSE: Final[Mapping[str, str]] = {"pause_until": TIME}
_NO_PAUSE: Final[Mapping[str, Any]] = {"paused": False, "pause_until": time_text(0)}
_UNPIN: Final[Mapping[str, str]] = {"group": STRING}
_PATHS: Final = ("/", "\\")

#: The members of an answer, computed in steps.
AnswerSteps = Generator[None, None, dict[str, Any]]
#: Kind of the answer, function from the body to its members, and members of a failed answer.
ApiCall = tuple[str, Callable[[bytes], dict[str, Any] | AnswerSteps], Mapping[str, Any]]


class ConsumerCalls:
    def __init__(self, account: Account, consumers: ConsumerRegistry) -> None:
        self._account, self._consumers = account, consumers

    def find(self, call: bytes) -> ApiCall | None:
        """Returns the call for a request; None for an unknown one. `call` is the subject after `$JS.API.CONSUMER.`."""
        try:
            tokens = call.decode().split(".")
        except UnicodeDecodeError:
            return None
        match tokens:
            case ["CREATE", stream, *rest] if rest or stream:
                # A filter has dots of its own.
                named = [rest[0], *([".".join(rest[1:])] if rest[1:] else [])] if rest else []
                return "consumer_create", partial(self._create, stream, named, False), {}
            case ["DURABLE", "CREATE", stream, name]:
                return "consumer_create", partial(self._create, stream, [name], True), {}
            case ["INFO", stream, name]:
                return "consumer_info", partial(self._info, stream, name), {}
            case ["DELETE", stream, name]:
                return "consumer_delete", partial(self._delete, stream, name), {}
            case ["PAUSE", stream, name]:
                return "consumer_pause", partial(self._pause, stream, name), _NO_PAUSE
            case ["UNPIN", stream, name]:
                return "consumer_unpin", partial(self._unpin, stream, name), {}
            case ["NAMES", stream]:
                return "consumer_names", partial(self._names, stream), _NO_PAGE
            case ["LIST", stream]:
                return "consumer_list", partial(self._list, stream), _NO_PAGE
            case ["LEADER", "STEPDOWN", _, _]:
                return "consumer_leader_stepdown", _no_cluster, {}
        return None

    def _find(self, stream: str, name: str) -> Consumer:
        consumer = self._consumers.of(self._account.find(stream)).get(name)
        if consumer is None:
            raise RequestError(404, 10014, "consumer not found")
        return consumer

    def _create(self, stream: str, named: list[str], durable: bool, body: bytes) -> AnswerSteps:
        if not body:
            raise RequestError(400, 10056, "stream name in subject does not match request")
        values = parse(body)
        if values.get("stream_name") != stream:
            raise RequestError(400, 10056, "stream name in subject does not match request")
        found = self._account.find(stream)
        if named and any(each in named[0] for each in _PATHS):
            raise RequestError(400, 10127, "Consumer name can not contain path separators")
        config, action = read_request(found, named, durable, values)
        return self._consumers.info((yield from self._consumers.create(found, config, action)))

    def _info(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        expect_empty(body)
        return self._consumers.info(self._find(stream, name))

    def _delete(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        expect_empty(body)
        self._consumers.remove(self._find(stream, name))
        return {"success": True}

    def _pause(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        wanted = members(parse(body), _PAUSE, "JSApiConsumerPauseRequest", strict=True)
        return self._consumers.pause(self._find(stream, name), wanted.get("pause_until", 0))

    def _unpin(self, stream: str, name: str, body: bytes) -> dict[str, Any]:
        if not body:
            raise invalid_json("unexpected end of JSON input")
        group = members(parse(body), _UNPIN, "JSApiConsumerUnpinRequest").get("group")
        if not group:
            raise invalid_json("consumer group not specified")
        self._consumers.unpin(self._find(stream, name), group)
        return {}

    def _page(self, stream: str, body: bytes) -> tuple[Stream, list[str], int]:
        wanted = members(parse(body), _PAGE, "JSApiConsumersRequest", strict=True)
        found = self._account.find(stream)
        names = sorted(self._consumers.of(found))
        return found, names, min(max(wanted.get("offset", 0), 0), len(names))

    def _names(self, stream: str, body: bytes) -> dict[str, Any]:
        _, names, offset = self._page(stream, body)
        page = names[offset : offset + _NAMES]
        return {"total": len(names), "offset": offset, "limit": _NAMES, "consumers": page}

    def _list(self, stream: str, body: bytes) -> AnswerSteps:
        found, names, offset = self._page(stream, body)
        page = []
        for name in names[offset : offset + _INFOS]:
            if name in self._consumers.of(found):
                page.append(self._consumers.info(self._consumers.of(found)[name]))
            yield
        return {"total": len(names), "offset": offset, "limit": _INFOS, "consumers": page}


def _no_cluster(_: bytes) -> dict[str, Any]:
    raise unavailable()
