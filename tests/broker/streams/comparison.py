"""Plays histories on two servers side by side, ours and a real one, and compares what can be seen of both.

After each step answers, states of streams and consumers are compared, after each part also the messages, and after each
start of the servers everything again, ours with what it was before as well. What servers do later, as copying, is
waited for. A history whose timers did not have the time that they need, on a machine that is busy, is given up.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import nats.errors

from tests import natsclient
from tests.broker.streams.history import SHORT, History, Step

API: Final = "$JS.API."
#: Seconds that both have to become equal.
_PATIENCE: Final = 6.0
_SILENCE: Final = "silence"
_LIMITS: Final = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})
_MOMENT: Final = re.compile(r"\$now\+(\d+)")
_PLACES: Final = re.compile(r"\$(last|first)([+-]\d+)?")


class DifferenceError(Exception):
    """Both did not do the same.

    Attributes:
        step: The step after which that was seen; None at the start or the end of a part.
        ours: What ours has.
        theirs: What the other one has.
        before: The steps of the part before this one.
        consumers: Configurations of the consumers of the stream, by name, as they are.
        limited: The stream is a copy of one with limits.
        marked: Markers follow what expires from the stream.
    """

    def __init__(
        self,
        place: str,
        step: Step | None,
        ours: Any,
        theirs: Any,
        before: Sequence[Step] = (),
        consumers: Mapping[str, Mapping[str, Any]] | None = None,
        limited: bool = False,
        marked: bool = False,
    ) -> None:
        self.step, self.ours, self.theirs = step, ours, theirs
        self.before, self.consumers, self.limited, self.marked = before, consumers or {}, limited, marked
        lines = [f"    {name}: {own!r}, not {other!r}" for name, own, other in self.differing()]
        super().__init__("\n".join((f"{place}: {step}", *lines)))

    def differing(self) -> list[tuple[str, Any, Any]]:
        """Returns what differs: where it is, what ours has, what the other one has."""
        return list(differing("", self.ours, self.theirs))

    def config(self, name: str) -> Mapping[str, Any]:
        """Returns the configuration of the consumer whose state a name of `differing` belongs to; empty for none."""
        kind, _, rest = name.partition(".")
        return self.consumers.get(rest.partition(".")[0], {}) if kind == "consumers" else {}


def differing(name: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """Iterates over what differs: where it is, what ours has, what the other one has."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours | theirs:
            yield from differing(f"{name}.{key}" if name else str(key), ours.get(key), theirs.get(key))
    elif ours != theirs:
        yield name, ours, theirs


class TooSlowError(Exception):
    """Timers of a history went off while it was played: nothing can be said of it."""


class _KnownError(Exception):
    """A difference is known."""


class Side:
    """A server on which a history is played.

    Args:
        client: A client of the server.
        tag: What names begin with.
        patience: Seconds after which nothing more comes.
    """

    def __init__(self, client: natsclient.Client, tag: str, patience: float) -> None:
        self.client, self.tag, self.patience = client, tag, patience
        #: By consumer: the subjects of acknowledgements of what was delivered.
        self.held: dict[str, list[str]] = {}
        self.pushed: dict[str, list[Any]] = {}  #: what came to a subject
        self._subscriptions: dict[str, Any] = {}
        self._marked: set[str] = set()  # streams that have or had delete markers

    def filled(self, value: Any) -> Any:
        """Returns a value with names filled in."""
        if isinstance(value, str):
            return value.replace("{tag}", self.tag)
        if isinstance(value, Mapping):
            return {name: self.filled(each) for name, each in value.items()}
        return [self.filled(each) for each in value] if isinstance(value, list | tuple) else value

    async def listen(self, subject: str) -> None:
        came = self.pushed.setdefault(subject, [])

        async def take(message: Any) -> None:
            if message.reply.startswith("$JS.ACK."):
                self.held.setdefault(".".join(message.reply.split(".")[2:4]), []).append(message.reply)
            # How many follow depends on when it was sent.
            seen = _delivered(message)
            came.append((seen[0], seen[1][:-1], *seen[2:]))

        self._subscriptions[subject] = await self.client.subscribe(subject, cb=take)
        await self.client.flush()

    async def mute(self, subject: str) -> None:
        found = self._subscriptions.pop(subject, None)
        if found is not None:
            await found.unsubscribe()
            await self.client.flush()

    async def resume(self, client: natsclient.Client) -> None:
        """Continues after its server was started again."""
        self.client = client
        subjects = list(self._subscriptions)
        for subject in subjects:
            await self.listen(subject)

    async def ask(self, subject: str, body: Any = "", headers: dict[str, str] | None = None) -> Any:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        try:
            answer = await self.client.request(subject, data, timeout=20, headers=headers)
        except nats.errors.NoRespondersError:
            return 503
        except (TimeoutError, nats.errors.TimeoutError):
            return _SILENCE
        if answer.headers:
            return _headers(answer), answer.data
        return json.loads(answer.data) if answer.data else ""

    async def api(self, call: str, body: Any = "") -> Any:
        return await self.ask(API + call, self.filled(body))

    async def gather(self, subject: str, body: Any, most: int, longer: float = 0) -> list[Any]:
        """Sends a request, and returns the messages that come back, up to a number, a status, or silence."""
        inbox = self.client.new_inbox()
        queue: asyncio.Queue[Any] = asyncio.Queue()
        subscription = await self.client.subscribe(inbox, cb=queue.put)
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        await self.client.publish(subject, data, reply=inbox)
        found: list[Any] = []
        try:
            while len(found) < most:
                message = await asyncio.wait_for(queue.get(), self.patience + longer)
                status = (message.headers or {}).get("Status", "")
                if status == "100":
                    continue
                if message.reply.startswith("$JS.ACK."):
                    self.held.setdefault(".".join(message.reply.split(".")[2:4]), []).append(message.reply)
                found.append(_delivered(message, inbox))
                if status:
                    break
        except TimeoutError:
            found.append(_SILENCE)
        await subscription.unsubscribe()
        return found

    async def play(self, step: Step) -> Any:
        """Plays a step. Returns what came back, without what is not the same twice."""
        return await getattr(self, f"_{step.kind}")(f"{self.tag}{step.stream}", self.filled(step.values))

    async def _create(self, name: str, values: Any) -> Any:
        return _outcome(await self.api(f"STREAM.CREATE.{name}", {"name": name, **values["config"]}))

    async def _update(self, name: str, values: Any) -> Any:
        return _outcome(await self.api(f"STREAM.UPDATE.{name}", {"name": name, **values["config"]}))

    async def _again(self, name: str, values: Any) -> Any:
        await self.api(f"STREAM.DELETE.{name}")
        self.held = {key: each for key, each in self.held.items() if not key.startswith(f"{name}.")}
        return await self._create(name, values)

    async def _publish(self, name: str, values: Any) -> Any:
        return _outcome(await self.ask(values["subject"], "x" * values["size"], values["headers"] or None), "seq")

    async def _burst(self, name: str, values: Any) -> Any:
        asked = (self.ask(each, f"{row:0{values['size']}}") for row, each in enumerate(values["subjects"]))
        return [_outcome(each, "seq") for each in await asyncio.gather(*asked)]

    async def _delete(self, name: str, values: Any) -> Any:
        return _outcome(await self.api(f"STREAM.MSG.DELETE.{name}", values["body"]))

    async def _purge(self, name: str, values: Any) -> Any:
        return _outcome(await self.api(f"STREAM.PURGE.{name}", values["body"]), "purged")

    async def _get(self, name: str, values: Any) -> Any:
        return _message(await self.api(f"STREAM.MSG.GET.{name}", values["body"]))

    async def _direct(self, name: str, values: Any) -> Any:
        subject = f"{API}DIRECT.GET.{name}" + (f".{values['subject']}" if "subject" in values else "")
        several = {"batch", "multi_last"} & set(values.get("body", ()))
        return await self.gather(subject, values.get("body", ""), 100 if several else 1)

    async def _consumer(self, name: str, values: Any) -> Any:
        body = {"stream_name": name, "config": {"name": values["name"], **values["config"]}, "action": values["action"]}
        return _outcome(await self.api(f"CONSUMER.CREATE.{name}.{values['name']}", body))

    async def _fetch(self, name: str, values: Any, longer: float = 0) -> Any:
        body = values["body"]
        wanted = body.get("batch", 1) if isinstance(body, dict) else int(body) if body.isdigit() else 1
        most = max(wanted, 1) if isinstance(wanted, int) else 1
        return await self.gather(f"{API}CONSUMER.MSG.NEXT.{name}.{values['consumer']}", body, most, longer=longer)

    async def _wait(self, name: str, values: Any) -> Any:
        """A request for messages that is open for most of the wait, if there is one."""
        return await self._fetch(name, values, values["body"]["expires"] / 1e9) if "body" in values else None

    async def _ack(self, name: str, values: Any) -> Any:
        held = self.held.get(f"{name}.{values['consumer']}", [])
        if "place" in values:
            sequence, number = values["place"]
            subject = f"$JS.ACK.{name}.{values['consumer']}.1.{sequence}.{number}.0.0"
        elif held:
            subject = held[values["which"] % len(held)]
        else:
            return "nothing is held"
        return await self.gather(subject, values["word"], 1)

    async def _listen(self, name: str, values: Any) -> Any:
        subject = f"{self.tag}.to.{name[-1]}.{values['consumer']}"
        if subject not in self._subscriptions:
            await self.listen(subject)

    async def _mute(self, name: str, values: Any) -> Any:
        await self.mute(f"{self.tag}.to.{name[-1]}.{values['consumer']}")

    async def _drop(self, name: str, values: Any) -> Any:
        self.held.pop(f"{name}.{values['consumer']}", None)
        return _outcome(await self.api(f"CONSUMER.DELETE.{name}.{values['consumer']}"))

    async def _pause(self, name: str, values: Any) -> Any:
        answer = await self.api(f"CONSUMER.PAUSE.{name}.{values['consumer']}", values["body"])
        return _outcome(answer, "paused")

    # What can be seen

    async def state(self, letter: str) -> dict[str, Any]:
        """Returns the state of a stream and its consumers."""
        name = f"{self.tag}{letter}"
        about, listed = await asyncio.gather(
            self.api(f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"}),
            self.api(f"CONSUMER.LIST.{name}"),
        )
        if "error" in about:
            return {"stream": _outcome(about)}
        # After a kill real servers may count a removed message as lost.
        state = {key: value for key, value in about["state"].items() if key not in ("first_ts", "last_ts", "lost")}
        if not state["messages"] and (not state["last_seq"] or "mirror" in about):
            # Of a stream that was never used real servers say that 0 is deleted; once it is purged it begins with 1.
            # A mirror of a purged stream begins there at once, or with the first message.
            state = {"messages": 0, "consumer_count": state["consumer_count"]}
        if "subject_delete_marker_ttl" in about["config"]:
            self._marked.add(letter)
        consumers = {
            each["name"]: _position(each, marked=letter in self._marked)
            for each in listed["consumers"]
            # Real servers copy with consumers of their own.
            if not each["name"].startswith(("JS_MIRROR_", "JS_SOURCE_"))
        }
        if "sources" in about:
            # Copies are larger there: their headers name consumers of real servers.
            state.pop("bytes", None)
        pushed = {subject: came for subject, came in self.pushed.items() if subject.split(".")[2] == letter}
        return {"stream": state, "consumers": consumers, "pushed": pushed}

    async def contents(self, letter: str) -> list[Any]:
        """Returns the messages of a stream."""
        name = f"{self.tag}{letter}"
        about = await self.api(f"STREAM.INFO.{name}")
        if "error" in about:
            return []
        first, last = about["state"]["first_seq"], about["state"]["last_seq"]
        bodies = [{"seq": sequence} for sequence in range(max(first, 1), last + 1)]
        asked = [self.api(f"STREAM.MSG.GET.{name}", body) for body in bodies]
        return [_message(each) for each in await asyncio.gather(*asked)]


def _outcome(answer: Any, *names: str) -> Any:
    """What matters of an answer: its error, or some members."""
    if not isinstance(answer, dict):
        return answer
    if "error" in answer:
        return f"error {answer['error']['err_code']}: {answer['error'].get('description')}"
    return {name: answer[name] for name in (*names, "duplicate") if name in answer} or "done"


def _headers(message: Any) -> dict[str, str]:
    found = {str(name): value for name, value in (message.headers or {}).items() if name != "Nats-Time-Stamp"}
    if found.get("Status") == "503":
        # Newer servers say what nobody listens to.
        return {"Status": "503"}
    if "unmarshal" in (text := found.get("Header.DESCRIPTION", "")):
        # Why JSON is not valid is said in words of a library.
        found["Header.DESCRIPTION"] = text.partition(" - ")[0]
    if "Nats-Stream-Source" in found:
        # Real servers add the name of a consumer of their own.
        found["Nats-Stream-Source"] = " ".join(found["Nats-Stream-Source"].split(" ")[:5])
    return found


def _delivered(message: Any, inbox: str = "") -> tuple[Any, ...]:
    tokens = message.reply.split(".") if message.reply else []
    # Deliveries, sequences, and how many follow: not the time.
    numbers = (*tokens[4:7], *tokens[8:]) if tokens[:2] == ["$JS", "ACK"] else ()
    subject = "inbox" if message.subject == inbox else message.subject
    return subject, numbers, _headers(message), message.data.decode()


def _message(answer: Any) -> Any:
    if not isinstance(answer, dict) or "error" in answer:
        return _outcome(answer)
    found = answer["message"]
    lines = base64.b64decode(found.get("hdrs", "")).decode().split("\r\n")
    kept = [" ".join(each.split(" ")[:6]) if each.startswith("Nats-Stream-Source") else each for each in lines]
    return found["seq"], found["subject"], kept, base64.b64decode(found.get("data", "")).decode()


def _position(info: Mapping[str, Any], *, marked: bool) -> dict[str, Any]:
    """What matters of the state of a consumer; `marked`: what expires from its stream leaves, or left, a marker."""
    found = {name: info[name] for name in ("num_ack_pending", "num_redelivered", "num_pending")}
    for name in ("delivered", "ack_floor"):
        found[name] = (info[name]["consumer_seq"], info[name]["stream_seq"])
    if info["num_ack_pending"]:
        # Where between two deliveries it is depends on which was first, the next one or the end of the one before.
        found["ack_floor"] = found["ack_floor"][:1]
    if marked or {"filter_subject", "filter_subjects"} & set(info["config"]):
        # Real servers move on over what does not match at times that nobody can tell, and over what a marker replaces.
        for name in ("delivered", "ack_floor"):
            found[name] = found[name][:1]
    return {**found, "paused": info.get("paused", False), "bound": info.get("push_bound", False)}


#: Returns whether a difference is known, with its reason elsewhere.
Known = Callable[[DifferenceError], bool]


class Comparison:
    """Plays one history on two servers.

    Args:
        history: The history.
        sides: Ours, and the other one.
        known: Differences that are known.
        gate: How many are played at a time.
    """

    def __init__(self, history: History, sides: tuple[Side, Side], known: Known, gate: asyncio.Semaphore) -> None:
        self.history, self.sides, self.known, self._gate = history, sides, known, gate
        self.letters: list[str] = []
        self.states: dict[str, Any] = {}
        self.difference: DifferenceError | None = None
        self.slow = False
        self._before: list[Any] = []
        self._steps: list[Step] = []  # of this part, up to now
        self._consumers: dict[str, dict[str, Any]] = {}  # configurations by letter of the stream and name
        self._configs: dict[str, dict[str, Any]] = {}  # of streams, by letter
        self.known_at: int | None = None  #: the part in which it came upon a difference that is known
        self._begun = time.monotonic()
        self._used = False  # before, no timer has begun

    @property
    def over(self) -> bool:
        """Whether nothing more is to be played."""
        return self.slow or self.difference is not None or self.known_at is not None

    async def play(self, part: int, *, check: bool = False) -> None:
        """Plays a part; what is found is in `difference`.

        Args:
            part: Which one.
            check: Compare before: the servers were started again.
        """
        await self._gate.acquire()
        self._begun = time.monotonic()
        try:
            if check:
                await self._check_again(f"seed {self.history.seed}, at the start of part {part}")
            self._steps = []
            for row, step in enumerate(self.history.parts[part]):
                await self._play(f"seed {self.history.seed}, part {part}, step {row}", step)
            await self.check(f"seed {self.history.seed}, after part {part}")
            self._before = await self._seen(self.sides[0])
        except _KnownError:
            self.known_at = part
        except DifferenceError as difference:
            self.difference = difference
        except TooSlowError:
            self.slow = True
        finally:
            self._gate.release()

    async def _seen(self, side: Side) -> list[Any]:
        """Messages and positions: consumers that are kept in memory are gone after a start, those that push go on.

        What was given up of a queue is kept by a lower floor, and otherwise no longer counted. Consumers forget that
        they began with the last message of each subject: all servers deliver the others, and only ours counts them.
        """
        found: list[Any] = []
        for letter in self.letters:
            consumers = (await side.state(letter)).get("consumers", {})
            stored = {}
            for name, config in self._consumers.get(letter, {}).items():
                changing = {"ack_floor", "num_redelivered"} if config.get("max_deliver", -1) > 0 else set()
                changing |= {"num_pending"} if config.get("deliver_policy") == "last_per_subject" else set()
                if not config.get("mem_storage") and "deliver_subject" not in config and name in consumers:
                    stored[name] = {key: each for key, each in consumers[name].items() if key not in changing}
            found.append((await side.contents(letter), stored))
        return found

    async def _check_again(self, place: str) -> None:
        """Compares after the servers were started again: a real one may not be what it was, ours is.

        Raises:
            DifferenceError: Both are not the same, and ours is not what it was.
        """
        try:
            await self.check(place)
        except DifferenceError:
            if await self._seen(self.sides[0]) == self._before:
                raise _KnownError from None
            raise

    async def check(self, place: str) -> None:
        """Compares states and messages.

        Raises:
            DifferenceError: They are not the same.
        """
        for letter in self.letters:
            await self._agree(place, None, letter)
            await self._equal(place, None, letter, lambda side, letter=letter: side.contents(letter))

    async def _play(self, place: str, step: Step) -> None:
        if step.stream and step.stream not in self.letters:
            self.letters.append(step.stream)
        values = self._placed(step)
        if step.kind == "wait":
            self._in_time()
            self._gate.release()
            ours, theirs, _ = await asyncio.gather(*(side.play(values) for side in self.sides), self._wait(step))
            await self._gate.acquire()
            self._begun = time.monotonic()
        else:
            ours, theirs = await asyncio.gather(*(side.play(values) for side in self.sides))
        if step.kind == "consumer" and theirs == "done":
            self._consumers.setdefault(step.stream, {})[step.values["name"]] = step.values["config"]
        if step.kind in ("create", "update", "again") and theirs == "done":
            self._configs[step.stream] = step.values["config"]
        self._used = self._used or step.kind not in ("create", "consumer", "listen")
        if not self._used:
            self._begun = time.monotonic()
        self._in_time()
        if ours != theirs:
            self._raise(place, values, step.stream, ours, theirs)
        for letter in self.letters:
            await self._agree(place, values, letter)
        self._in_time()
        self._steps.append(values)

    async def _wait(self, step: Step) -> None:
        """Waits until timers are over.

        What expires may leave a marker, which expires as well, and whose copy, which does not, is delivered again;
        timers go off up to a second late.
        """
        markers = any("subject_delete_marker_ttl" in each for each in self._configs.values())
        await asyncio.sleep(step.values.get("seconds", SHORT / 1e9 + (5.7 if markers else 2.5)))

    def _raise(self, place: str, step: Step | None, letter: str, ours: Any, theirs: Any) -> NoReturn:
        config = self._configs.get(letter, {})
        limited = not {"mirror", "sources"}.isdisjoint(config) and not _LIMITS.isdisjoint(self._configs["A"])
        marked = "subject_delete_marker_ttl" in config
        found = DifferenceError(place, step, ours, theirs, self._steps, self._consumers.get(letter), limited, marked)
        if self.known(found):
            raise _KnownError
        raise found

    def _in_time(self) -> None:
        if 0 < self.history.spacing < time.monotonic() - self._begun:
            raise TooSlowError

    def _placed(self, step: Step) -> Step:
        """Fills in sequences."""
        state = self.states.get(step.stream, {}).get("stream")
        state = state if isinstance(state, dict) else {}

        def number(found: re.Match[str]) -> str:
            return str(max(state.get(f"{found[1]}_seq", 1) + int(found[2] or 0), 0))

        def placed(value: Any) -> Any:
            if isinstance(value, str) and (found := _PLACES.fullmatch(value)):
                return number(found)
            if isinstance(value, str) and (found := _MOMENT.fullmatch(value)):
                return (datetime.now(UTC) + timedelta(seconds=int(found[1]))).isoformat()
            if isinstance(value, Mapping):
                return {name: placed(each) for name, each in value.items()}
            return value

        values = placed(step.values)
        if isinstance(body := values.get("body"), dict):
            values["body"] = {
                name: int(each) if name in ("seq", "up_to_seq") and isinstance(each, str) else each
                for name, each in body.items()
            }
        return Step(step.kind, step.stream, values)

    async def _agree(self, place: str, step: Step | None, letter: str) -> None:
        self.states[letter] = await self._equal(place, step, letter, lambda side: side.state(letter))

    async def _equal(self, place: str, step: Step | None, letter: str, see: Callable[[Side], Any]) -> Any:
        """Waits until both show the same, and returns it."""
        deadline = time.monotonic() + _PATIENCE
        pause = 0.01
        while True:
            ours, theirs = await asyncio.gather(*(see(side) for side in self.sides))
            if ours == theirs:
                return ours
            if time.monotonic() > deadline:
                # Timers that went off meanwhile, here and not there, would have made it equal again.
                self._raise(place, step, letter, ours, theirs)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.3)
