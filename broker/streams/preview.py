"""The preview of JetStream, of 2019 and 2020: its requests and answers, on the streams of today.

There were two dialects. P0 has message sets and observables, and requests name them in the body; P2 has streams and
consumers, and requests name them in the subject. Each request is translated into one to the current API, and the
answer is translated back. Answers are text: `+OK`, `-ERR`, or indented JSON.

The subject of a request shows its dialect. `$JS.INFO` belongs to both and has an answer for both; both understand
each other's members of configurations. Templates are not supported.

Facts: jetstream-server.md section 22, jetstream-api.md section 12.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.stores.interface import StorageError
from broker.streams.api_errors import (
    RequestError,
    bad_request,
    name_mismatch,
    no_message,
    store_failed,
    stream_not_found,
)
from broker.streams.requests import dumps, members, parse, time_text
from broker.streams.streaminfo import stream_state
from broker.streams.streams_options import PREVIEW
from stantools.nats.interest import finished
from stantools.nats.subjects import is_literal
from stantools.streamfiles.stream_config import BOOL, OBJECT, STRING, UINT

if TYPE_CHECKING:
    from broker.streams.account import Account
    from broker.streams.api import Api
    from broker.streams.consumer import Consumer
    from broker.streams.consumerconfig import ConsumerConfig
    from broker.streams.consumers import ConsumerRegistry
    from broker.streams.ports import StreamsPort
    from broker.streams.stream import Stream

_OK: Final = b"+OK"
#: messages listed in an answer about a consumer
_MOST_PENDING: Final = 10_000
#: Current names of members of configurations, and the preview's names. Of two names the second is that of P0.
_STREAM: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in ("name", "subjects", "retention", "max_msgs", "max_bytes", "max_age", "max_msg_size")},
    **{name: (name,) for name in ("storage", "num_replicas", "no_ack")},
    "max_consumers": ("max_consumers", "max_observables"),
}
_CONSUMER: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in ("durable_name", "ack_policy", "ack_wait", "max_deliver", "replay_policy")},
    "deliver_subject": ("delivery_subject",),
    "filter_subject": ("filter_subject", "subject"),
    "sample_freq": ("sample_freq", "sample_frequency"),
    "opt_start_seq": ("stream_seq", "msg_set_seq"),
}
_RETENTIONS: Final = {"stream_limits": "limits", "interest_based": "interest", "work_queue": "workqueue"}
_STARTS: Final[Mapping[str, str]] = {
    **{"deliver_all": BOOL, "deliver_last": BOOL},
    **{"stream_seq": UINT, "msg_set_seq": UINT, "start_time": STRING},
}
_REQUEST: Final[Mapping[str, str]] = {"config": OBJECT, "stream_name": STRING, "msg_set_name": STRING}
#: The preview's texts of errors, by the current number.
_TEXTS: Final[Mapping[int, str]] = {
    **dict.fromkeys((10003, 10025, 10038), "bad request"),
    10013: "consumer already exists and is still active",
    10037: "could not load message from storage",
    10058: "stream name already in use",
}


@dataclass(frozen=True, slots=True)
class PreviewDialect:
    """A dialect of the preview."""

    name: str
    acks: bytes  #: prefix of the subjects of acknowledgements
    quote: str  #: quotation mark around the text of an error
    words: tuple[tuple[str, str], ...]  #: words of errors, and their replacements

    def refusal(self, error: RequestError) -> bytes:
        """Returns the answer that reports an error."""
        text = _TEXTS.get(error.number, error.text).replace("deliver subject", "delivery subject")
        for today, then in self.words:
            text = text.replace(today, then)
        return f"-ERR {self.quote}{text}{self.quote}".encode()


_P0: Final = PreviewDialect(
    "P0",
    b"$JS.A",
    "",
    (("stream not found", "msgset not found"), ("stream", "message set"), ("consumer", "observable")),
)
_P2: Final = PreviewDialect("P2", b"$JS.ACK", "'", ())
DIALECTS: Final[Mapping[str, PreviewDialect]] = {each.name: each for each in (_P0, _P2)}


class PreviewRequest(NamedTuple):
    dialect: PreviewDialect
    names: list[str]  #: name of the stream, then of the consumer
    body: bytes  #: body after the names
    reply: bytes


def translate_publish_ack(stream: Stream, answer: bytes) -> bytes:
    """Translates a publish acknowledgement into the dialect of the stream's creator.

    An empty answer is not a publish acknowledgement and stays as it is.
    """
    dialect = DIALECTS.get(stream.config.metadata.get(PREVIEW, ""))
    if dialect is None or not answer:
        return answer
    error = json.loads(answer).get("error")
    return _OK if error is None else dialect.refusal(_error(error))


class PreviewApi:
    """Answers requests of the preview.

    `calls` has, by pattern of subjects, functions from subject, reply and body to an answer, which may be empty.
    """

    def __init__(self, api: Api, account: Account, consumers: ConsumerRegistry, bus: StreamsPort) -> None:
        self._api, self._account, self._consumers, self._bus = api, account, consumers, bus
        # Dialect, subject, number of names at the beginning of the body, and function.
        calls: tuple[tuple[PreviewDialect, str, int, Callable[[PreviewRequest], bytes]], ...] = (
            (_P2, "ENABLED", 0, lambda _: _OK),
            (_P2, "INFO", 0, self._account_info),
            (_P0, "MSGSETS", 0, self._stream_names),
            (_P0, "MSGSET.CREATE", 0, self._create),
            (_P0, "MSGSET.INFO", 1, self._info),
            (_P0, "MSGSET.DELETE", 1, partial(self._answer_names, "STREAM.DELETE")),
            (_P0, "MSGSET.PURGE", 1, partial(self._answer_names, "STREAM.PURGE")),
            (_P0, "MSGSET.MSG.DELETE", 1, self._delete_message),
            (_P0, "BYSEQ.*", 0, self._message),
            (_P0, "OBSERVABLES", 1, self._consumer_names),
            (_P0, "OBSERVABLE.CREATE", 0, self._create_consumer),
            (_P0, "OBSERVABLE.INFO", 2, self._consumer_info),
            (_P0, "OBSERVABLE.DELETE", 2, partial(self._answer_names, "CONSUMER.DELETE")),
            (_P0, "RN.*.*", 0, self._next),
            (_P2, "STREAM.LIST", 0, self._stream_names),
            (_P2, "STREAM.*.CREATE", 0, self._create),
            (_P2, "STREAM.*.UPDATE", 0, self._update),
            (_P2, "STREAM.*.INFO", 0, self._info),
            (_P2, "STREAM.*.DELETE", 0, partial(self._answer_names, "STREAM.DELETE")),
            (_P2, "STREAM.*.PURGE", 0, partial(self._answer_names, "STREAM.PURGE")),
            (_P2, "STREAM.*.MSG.DELETE", 0, self._delete_message),
            (_P2, "STREAM.*.MSG.BYSEQ", 0, self._message),
            (_P2, "STREAM.*.CONSUMERS", 0, self._consumer_names),
            (_P2, "STREAM.*.EPHEMERAL.CONSUMER.CREATE", 0, self._create_consumer),
            (_P2, "STREAM.*.CONSUMER.*.CREATE", 0, self._create_consumer),
            (_P2, "STREAM.*.CONSUMER.*.INFO", 0, self._consumer_info),
            (_P2, "STREAM.*.CONSUMER.*.DELETE", 0, partial(self._answer_names, "CONSUMER.DELETE")),
            (_P2, "STREAM.*.CONSUMER.*.NEXT", 0, self._next),
        )
        self.calls: Mapping[bytes, Callable[[bytes, bytes, bytes], bytes]] = {
            f"$JS.{pattern}".encode(): partial(_answer, dialect, f"$JS.{pattern}".split("."), names, call)
            for dialect, pattern, names, call in calls
        }

    def _call(self, call: str, values: object = None) -> dict[str, Any]:
        """Sends a request to the current API. Returns its answer; raises `RequestError`."""
        body = b"" if values is None else dumps(values)
        payload = finished(self._api.answer(f"$JS.API.{call}".encode(), b"", body))
        if not payload:
            # With such names there is no such request.
            raise bad_request()
        answer: dict[str, Any] = json.loads(payload)
        if "error" in answer:
            raise _error(answer["error"])
        return answer

    def _answer_names(self, call: str, asked: PreviewRequest) -> bytes:
        _expect_nothing(asked)
        stream, *consumer = asked.names
        if stream not in self._account.streams:
            raise stream_not_found()
        if consumer:
            self._consumer(asked)
        self._call(".".join((call, *asked.names)))
        return _OK

    def _account_info(self, _: PreviewRequest) -> bytes:
        found, limits = self._account.as_json(), self._account.quota.limits
        return _json(
            {
                **{name: found[name] for name in ("memory", "storage", "streams")},
                "msg_sets": found["streams"],
                "limits": {
                    "max_memory": limits.memory,
                    "max_storage": limits.file,
                    **dict.fromkeys(("max_streams", "max_consumers", "max_msg_sets", "max_observables"), -1),
                },
            }
        )

    def _stream_names(self, asked: PreviewRequest) -> bytes:
        if asked.dialect is _P2:
            _expect_nothing(asked)
        return _json(sorted(self._account.streams) or None)

    def _create(self, asked: PreviewRequest) -> bytes:
        config = self._config(asked)
        if config["name"] in self._account.streams:
            raise RequestError(400, 10058, "stream name already in use")
        made = {"storage": "memory", **config, "metadata": {PREVIEW: asked.dialect.name}}
        self._call(f"STREAM.CREATE.{config['name']}", made)
        return _OK

    def _update(self, asked: PreviewRequest) -> bytes:
        stream, config = self._account.find(asked.names[0]), self._config(asked)
        kept = stream.config.as_json()
        if config.get("max_age", stream.config.max_age) != stream.config.max_age:
            # The duplicate window must not exceed the maximum age.
            kept.pop("duplicate_window", None)
        self._call(f"STREAM.UPDATE.{stream.name}", {**kept, **config})
        return _OK

    def _config(self, asked: PreviewRequest) -> dict[str, Any]:
        config = _current_members(parse(asked.body), _STREAM)
        name, retention = config.get("name"), config.get("retention")
        if not isinstance(name, str):
            raise bad_request()
        if asked.names not in ([], [name]):
            raise name_mismatch()
        if isinstance(retention, str):
            config["retention"] = _RETENTIONS.get(retention, retention)
        return config

    def _info(self, asked: PreviewRequest) -> bytes:
        _expect_nothing(asked)
        stream = self._account.find(asked.names[0])
        state = stream_state(stream)
        kept = {name: state[name] for name in ("messages", "bytes", "first_seq", "last_seq", "consumer_count")}
        if asked.dialect is _P0:
            return _json(dict(zip(("Msgs", "Bytes", "FirstSeq", "LastSeq"), kept.values(), strict=False)))
        config = stream.config.as_json()
        return _json({"config": {name: config[name] for name in _STREAM if name in config}, "state": kept})

    def _delete_message(self, asked: PreviewRequest) -> bytes:
        stream = self._account.find(asked.names[0])
        sequence = _sequence(asked.body)
        if sequence is None:
            raise bad_request()
        if stream.store.contents.locate(sequence) is None:
            raise _refused(f"sequence [{sequence}] not found")
        self._call(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence})
        return _OK

    def _message(self, asked: PreviewRequest) -> bytes:
        name, wanted = asked.names[0], _sequence(asked.body)
        if asked.body and wanted is None:
            raise _refused("bad sequence argument")
        if wanted == 0:
            raise no_message()
        found = self._call(f"STREAM.MSG.GET.{name}", {"seq": wanted} if wanted else {"last_by_subj": ">"})["message"]
        return _json({name: found.get(name, "") for name in ("subject", "seq", "data", "time")})

    def _consumer(self, asked: PreviewRequest) -> Consumer:
        name, consumer = asked.names
        found = self._consumers.of(self._account.find(name)).get(consumer)
        if found is None:
            raise RequestError(404, 10014, "consumer not found")
        return found

    def _consumer_names(self, asked: PreviewRequest) -> bytes:
        _expect_nothing(asked)
        return _json(sorted(self._consumers.of(self._account.find(asked.names[0]))) or None)

    def _create_consumer(self, asked: PreviewRequest) -> bytes:
        wanted = members(parse(asked.body), _REQUEST, "CreateConsumerRequest")
        stream, *names = asked.names or [wanted.get("msg_set_name", "")]
        if asked.names and wanted.get("stream_name") != stream:
            raise name_mismatch()
        self._account.find(stream)
        config = {**_consumer_config(wanted.get("config", {})), "metadata": {PREVIEW: asked.dialect.name}}
        durable, subject = config.get("durable_name"), str(config.get("deliver_subject", "")).encode()
        if not durable and is_literal(subject) and not self._bus.interested(subject):
            raise _refused("consumer requires interest for delivery subject when ephemeral")
        if asked.dialect is _P0 and durable:
            names = [str(durable)]
        call = ("CONSUMER.DURABLE.CREATE", stream, *names) if names else ("CONSUMER.CREATE", stream)
        made = self._call(".".join(call), {"stream_name": stream, "config": config})
        return _OK if names or asked.dialect is _P0 else b"+OK " + made["name"].encode()

    def _consumer_info(self, asked: PreviewRequest) -> bytes:
        _expect_nothing(asked)
        consumer = self._consumer(asked)
        pending = {str(sequence): each.time for sequence, each in islice(consumer.pending.items(), _MOST_PENDING)}
        again = {str(sequence): count for sequence, count in islice(consumer.redeliveries.items(), _MOST_PENDING)}
        if asked.dialect is _P0:
            (number, sequence), floor = consumer.delivered, consumer.floor
            return _json(
                {
                    # The preview reports the next sequences, not the last ones.
                    "Delivered": {"ObsSeq": number + 1, "SetSeq": sequence + 1},
                    "AckFloor": {"ObsSeq": floor[0], "SetSeq": floor[1]},
                    "Pending": pending or None,
                    "Redelivery": again or None,
                }
            )
        places = {"delivered": consumer.delivered, "ack_floor": consumer.floor}
        state = {
            **{name: {"consumer_seq": number, "stream_seq": sequence} for name, (number, sequence) in places.items()},
            "pending": pending or None,
            "redelivered": again or None,
        }
        return _json({"name": consumer.name, "config": _preview_consumer(consumer.config), "state": state})

    def _next(self, asked: PreviewRequest) -> bytes:
        consumer = self._consumer(asked)
        if consumer.config.push:
            raise _refused("consumer is push based")
        if asked.reply:
            self._consumers.ask(consumer, asked.reply, asked.body, asked.dialect.acks)
        return b""


def _answer(
    dialect: PreviewDialect,
    pattern: list[str],
    count: int,
    call: Callable[[PreviewRequest], bytes],
    subject: bytes,
    reply: bytes,
    body: bytes,
) -> bytes:
    """Answers a request whose body begins with `count` names."""
    tokens = zip(pattern, subject.decode(errors="replace").split("."), strict=True)
    names = [token for wanted, token in tokens if wanted == "*"]
    words = body.split(None, count) if count else [body]
    try:
        if len(words) < count:
            raise bad_request()
        names += [word.decode(errors="replace") for word in words[:count]]
        return call(PreviewRequest(dialect, names, words[count] if len(words) > count else b"", reply))
    except RequestError as error:
        return dialect.refusal(error)
    except StorageError as error:
        return dialect.refusal(store_failed(error.message))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace")


def _error(answer: Mapping[str, Any]) -> RequestError:
    return RequestError(answer["code"], answer["err_code"], answer["description"])


def _refused(text: str) -> RequestError:
    """An error that only the preview has, in the words of P2."""
    return RequestError(400, 0, text)


def _expect_nothing(asked: PreviewRequest) -> None:
    if asked.body:
        raise bad_request()


def _sequence(body: bytes) -> int | None:
    text = body.strip()
    return int(text) if text.isdigit() and len(text) < 20 else None


def _current_members(values: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Translates the members of a configuration to their current names."""
    return {today: values[name] for today, known in names.items() for name in known if values.get(name) is not None}


def _consumer_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the configuration of a consumer to the current form."""
    starts = members(values, _STARTS, "ConsumerConfig")
    config = _current_members(values, _CONSUMER)
    time = starts.get("start_time") or time_text(0)
    begins = {
        "all": starts.get("deliver_all"),
        "last": starts.get("deliver_last"),
        "by_start_sequence": config.get("opt_start_seq"),
        "by_start_time": time != time_text(0),
    }
    given = [policy for policy, wanted in begins.items() if wanted]
    if len(given) > 1:
        raise _refused("consumer starting position conflict")
    if not config.get("deliver_subject"):
        if config.get("ack_policy") != "explicit":
            raise _refused("consumer in pull mode requires explicit ack policy")
        if not config.get("durable_name"):
            raise _refused("consumer in pull mode requires a durable name")
    if begins["by_start_time"]:
        config["opt_start_time"] = time
    return {**config, "deliver_policy": given[0] if given else "new"}


def _preview_consumer(config: ConsumerConfig) -> dict[str, Any]:
    """Translates the configuration of a consumer to that of the preview."""
    today = config.as_json()
    policy = {"all": {"deliver_all": True}, "last": {"deliver_last": True}}.get(config.deliver_policy, {})
    time = {"start_time": today["opt_start_time"]} if config.opt_start_time else {}
    return {**{known[0]: today[name] for name, known in _CONSUMER.items() if name in today}, **policy, **time}
