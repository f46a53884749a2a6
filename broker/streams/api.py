"""Requests to `$JS.API.` and their answers (jetstream-server.md sections 2 to 6)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Final

from broker.ports import Clock
from broker.stores.interface import StorageError
from broker.streams import message_requests
from broker.streams.account import Account
from broker.streams.advisories import Advisories
from broker.streams.api_errors import RequestError, bad_request, name_mismatch, overloaded, store_failed, unavailable
from broker.streams.configuration import StreamConfig
from broker.streams.consumercalls import AnswerSteps, ConsumerCalls
from broker.streams.consumers import ConsumerRegistry
from broker.streams.headers import bare, status
from broker.streams.purge import purge
from broker.streams.requests import dumps, dumps_long, expect_empty, failed, members, parse, response_type
from broker.streams.stream import Stream
from broker.streams.streaminfo import add_deleted, stream_info, stream_state, subject_counts
from broker.streams.streams_options import LEVEL, beyond
from broker.streams.transfers import Transfers
from stantools.streamfiles.stream_config import BOOL, INT, STRING, UINT

PREFIX: Final = b"$JS.API."
#: prefix of the subjects of direct gets
DIRECT: Final = PREFIX + b"DIRECT.GET."
_CONSUMER: Final = b"CONSUMER."
_NAMES: Final = 1024
_INFOS: Final = 256
_SUBJECTS: Final = 100_000
_PAGE: Final[Mapping[str, str]] = {"subject": STRING, "offset": INT}
_INFO: Final[Mapping[str, str]] = {"deleted_details": BOOL, "subjects_filter": STRING, "offset": INT}
_PEDANTIC: Final[Mapping[str, str]] = {"pedantic": BOOL}
_PURGE: Final[Mapping[str, str]] = {"filter": STRING, "seq": UINT, "keep": UINT}
#: answer to a direct get that needs a higher level of the API
BEYOND: Final = status("412 Required Api Level")
#: members of a failed answer to a list request
_NO_PAGE: Final[Mapping[str, Any]] = {"total": 0, "offset": 0, "limit": 0}

#: A call of the API: takes the name of the stream and the body; returns the members of the answer, or a generator of
#: them.
Call = Callable[[str, bytes], dict[str, Any] | AnswerSteps]
#: Prefixes of the requests that change nothing.
_QUESTIONS: Final = (
    b"INFO",
    b"STREAM.INFO.",
    b"STREAM.NAMES",
    b"STREAM.LIST",
    b"STREAM.MSG.GET.",
    b"CONSUMER.INFO.",
    b"CONSUMER.NAMES.",
    b"CONSUMER.LIST.",
    b"CONSUMER.MSG.NEXT.",
    b"DIRECT.",
)
#: Prefixes of other requests, and the position of the stream's name in them. Without an entry it is the last token.
_STREAM_AT: Final = ((b"CONSUMER.DURABLE.CREATE.", 3), (b"CONSUMER.LEADER.", 3), (b"CONSUMER.", 2))


def changed_stream(call: bytes) -> bytes:
    """Returns the stream that a request changes; empty if it only reads. `call` is the subject after `$JS.API.`."""
    if call.startswith(_QUESTIONS):
        return b""
    tokens = call.split(b".")
    place = next((at for head, at in _STREAM_AT if call.startswith(head)), -1)
    return tokens[place] if place < len(tokens) else b""


class Api:
    """Answers requests to the API.

    `listen` is called with a stream whose subjects are new or changed, and returns work in steps; `forget` is called
    with a deleted stream. `total` and `errors` count the requests and the failed ones.
    """

    def __init__(
        self,
        account: Account,
        consumers: ConsumerRegistry,
        transfers: Transfers,
        clock: Clock,
        advisories: Advisories,
        listen: Callable[[Stream], Iterator[None]],
        forget: Callable[[Stream], None],
    ) -> None:
        self._consumers, self._transfers = consumers, transfers
        self._consumer_calls = ConsumerCalls(account, consumers)
        self._account, self._clock, self._advisories = account, clock, advisories
        self._listen, self._forget = listen, forget
        self.total = self.errors = 0
        #: Calls by the tokens before the name of a stream: kind of the answer, the call, members of a failed answer.
        self._calls: dict[bytes, tuple[str, Call, Mapping[str, Any]]] = {
            b"STREAM.CREATE": ("stream_create", self._create, {}),
            b"STREAM.UPDATE": ("stream_update", self._update, {}),
            b"STREAM.INFO": ("stream_info", self._info, _NO_PAGE),
            b"STREAM.DELETE": ("stream_delete", self._delete, {}),
            b"STREAM.PURGE": ("stream_purge", self._purge, {"purged": 0}),
            b"STREAM.MSG.GET": ("stream_msg_get", self._get, {}),
            b"STREAM.MSG.DELETE": ("stream_msg_delete", self._delete_message, {}),
            b"STREAM.SNAPSHOT": ("stream_snapshot", self._snapshot, {}),
            b"STREAM.RESTORE": ("stream_restore", transfers.restore, {"deliver_subject": ""}),
            b"STREAM.LEADER.STEPDOWN": ("stream_leader_stepdown", self._no_cluster, {}),
            b"STREAM.PEER.REMOVE": ("stream_remove_peer", self._no_cluster, {}),
        }
        self._plain_calls: dict[
            bytes, tuple[str, Callable[[bytes], dict[str, Any] | AnswerSteps], Mapping[str, Any]]
        ] = {
            b"INFO": ("account_info", self._account_info, {}),
            b"STREAM.NAMES": ("stream_names", self._names, {**_NO_PAGE, "streams": None}),
            b"STREAM.LIST": ("stream_list", self._list, {**_NO_PAGE, "streams": []}),
        }

    def answer(self, subject: bytes, header: bytes, body: bytes) -> Generator[None, None, bytes]:
        """Returns the answer to a request other than a direct get; empty where nats-server does not answer."""
        answer = yield from self._answer(subject[len(PREFIX) :], header, body)
        if answer:
            self._advisories.audit(subject, body, answer)
        return answer

    def refusal(self, subject: bytes) -> bytes:
        """Returns the answer to a request when the queue is full."""
        self.total += 1
        self.errors += 1
        call = subject[len(PREFIX) :]
        found = self._plain_calls.get(call) or self._calls.get(call.rpartition(b".")[0])
        kind = found[0] if found is not None else "consumer_create"
        return dumps(failed(kind, overloaded()))

    def _answer(self, call: bytes, header: bytes, body: bytes) -> Generator[None, None, bytes]:
        found = self._plain_calls.get(call)
        if found is not None:
            kind, plain, otherwise = found
            return (yield from self._execute(kind, header, lambda: plain(body), otherwise))
        if call.startswith(_CONSUMER):
            about = self._consumer_calls.find(call[len(_CONSUMER) :])
            if about is None:
                return b""
            kind, consumer_call, otherwise = about
            return (yield from self._execute(kind, header, lambda: consumer_call(body), otherwise))
        action, _, name = call.rpartition(b".")
        named = self._calls.get(action)
        if named is None or not name:
            return b""
        kind, of_stream, otherwise = named
        try:
            text = name.decode()
        except UnicodeDecodeError:
            text = ""
        return (yield from self._execute(kind, header, lambda: of_stream(text, body), otherwise))

    def _execute(
        self, kind: str, header: bytes, call: Callable[[], dict[str, Any] | AnswerSteps], otherwise: Mapping[str, Any]
    ) -> Generator[None, None, bytes]:
        self.total += 1
        try:
            if beyond(header):
                raise RequestError(412, 10185, "JetStream minimum api level required")
            found = call()
            if isinstance(found, Generator):
                found = yield from found
            return (yield from dumps_long({"type": response_type(kind), **found}))
        except RequestError as error:
            problem = error
        except StorageError as error:
            problem = store_failed(error.message)
        self.errors += 1
        return dumps({**failed(kind, problem), **otherwise})

    def _account_info(self, body: bytes) -> dict[str, Any]:
        unlimited = ("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending")
        limits = dict.fromkeys((*unlimited, "memory_max_stream_bytes", "storage_max_stream_bytes"), -1)
        return {
            **self._account.as_json(),
            "consumers": self._consumers.count,
            "limits": {**limits, "max_bytes_required": False},
            "api": {"level": LEVEL, "total": self.total - 1, "errors": self.errors},
        }

    def _config(self, name: str, body: bytes) -> tuple[StreamConfig, bool]:
        """Reads the configuration of a request, and whether the request is pedantic."""
        if "/" in name or "\\" in name:
            raise RequestError(400, 10128, "Stream name can not contain path separators")
        if not body:
            raise name_mismatch()
        values = parse(body)
        pedantic = members(values, _PEDANTIC, "StreamConfigRequest").get("pedantic", False)
        values.pop("pedantic", None)
        config = StreamConfig.read(values)
        if config.name != name:
            raise name_mismatch()
        if pedantic:
            config.check_as_sent(values)
        return config, pedantic

    def _create(self, name: str, body: bytes) -> AnswerSteps:
        config, pedantic = self._config(name, body)
        stream, new = yield from self._account.create(config, pedantic=pedantic)
        if new:
            yield from self._listen(stream)
            self._advisories.stream(name, "create")
        return {**stream_info(stream, self._clock.wall()), "did_create": True}

    def _update(self, name: str, body: bytes) -> AnswerSteps:
        config = self._config(name, body)[0]
        known = self._account.streams.get(name)
        before = known.config.retention if known is not None else ""
        stream = yield from self._account.update(config)
        # From now on what copies from it has a say, too.
        yield from self._listen(stream)
        if stream.config.retention != before:
            yield from stream.remove_unneeded(delivered=bool(stream.followers))
            stream.check_not_deleted()
            stream.store.flush()
        self._advisories.stream(name, "modify")
        return stream_info(stream, self._clock.wall())

    def _info(self, name: str, body: bytes) -> AnswerSteps:
        wanted = members(parse(body), _INFO, "JSApiStreamInfoRequest", strict=True)
        stream = self._account.find(name)
        info = stream_info(stream, self._clock.wall())
        if wanted.get("deleted_details"):
            info["state"] = stream_state(stream)
            yield from add_deleted(info["state"], stream)
        page = dict(_NO_PAGE)
        if pattern := wanted.get("subjects_filter"):
            offset = max(wanted.get("offset", 0), 0)
            total, subjects = yield from subject_counts(stream, pattern.encode(), offset)
            if total:
                page = {"total": total, "offset": min(offset, total), "limit": _SUBJECTS}
            stream.check_not_deleted()
            if subjects:
                info["state"]["subjects"] = subjects
        return {**page, **info}

    def _page(self, body: bytes, what: str) -> tuple[list[Stream], int]:
        wanted = members(parse(body), _PAGE, what, strict=True)
        found = self._account.selected(wanted.get("subject", ""))
        return found, min(max(wanted.get("offset", 0), 0), len(found))

    def _names(self, body: bytes) -> dict[str, Any]:
        found, offset = self._page(body, "JSApiStreamNamesRequest")
        names = [stream.name for stream in found[offset : offset + _NAMES]]
        return {"total": len(found), "offset": offset, "limit": _NAMES, "streams": names or None}

    def _list(self, body: bytes) -> AnswerSteps:
        found, offset = self._page(body, "JSApiStreamListRequest")
        infos = []
        for stream in found[offset : offset + _INFOS]:
            infos.append(stream_info(stream, self._clock.wall()))
            yield
        return {"total": len(found), "offset": offset, "limit": _INFOS, "streams": infos}

    def _delete(self, name: str, body: bytes) -> dict[str, Any]:
        expect_empty(body)
        self._forget(self._account.delete(name))
        self._advisories.stream(name, "delete")
        return {"success": True}

    def _purge(self, name: str, body: bytes) -> AnswerSteps:
        wanted = members(parse(body), _PURGE, "JSApiStreamPurgeRequest", strict=True)
        if wanted.get("seq") and wanted.get("keep"):
            raise bad_request()
        stream = self._account.find(name)
        pattern = wanted.get("filter", "")
        patterns = (pattern.encode(),) if pattern else ()
        purged = yield from purge(stream, patterns, wanted.get("seq", 0), wanted.get("keep", 0))
        stream.store.flush()
        return {"success": True, "purged": purged}

    def _get(self, name: str, body: bytes) -> AnswerSteps:
        return {"message": (yield from message_requests.stored_message(partial(self._account.find, name), body))}

    def _delete_message(self, name: str, body: bytes) -> dict[str, Any]:
        message_requests.delete(partial(self._account.find, name), body).store.flush()
        return {"success": True}

    def _snapshot(self, name: str, body: bytes) -> AnswerSteps:
        stream = self._account.find(name)
        for consumer in list(self._consumers.of(stream).values()):
            self._consumers.store_state(consumer)
            yield
        stream.check_not_deleted()
        return self._transfers.snapshot(stream, body)

    def _no_cluster(self, name: str, body: bytes) -> dict[str, Any]:
        raise unavailable()

    def direct(self, rest: bytes, header: bytes, body: bytes) -> Iterator[tuple[bytes, int] | None]:
        """Iterates over the answers to a direct get: messages, each with the size of its header block.

        None is a point where other requests may run. `rest` is the subject after `DIRECT`: a stream, and possibly a
        subject.
        """
        self.total += 1
        name, _, subject = rest.partition(b".")
        stream = self._account.direct(name.decode(errors="replace"))
        if header and beyond(header):
            yield bare(BEYOND)
        elif stream is None:
            yield bare(status("503"))
        else:
            yield from message_requests.direct(stream, subject, body)

    def last(self, rest: bytes, header: bytes) -> tuple[bytes, int]:
        """Answers at once a direct get of the last message of a subject without wildcards, the usual kind."""
        self.total += 1
        name, _, subject = rest.partition(b".")
        stream = self._account.direct(name.decode(errors="replace"))
        if header and beyond(header):
            return bare(BEYOND)
        return bare(status("503")) if stream is None else message_requests.last(stream, subject)
