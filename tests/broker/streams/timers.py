"""Random histories in which timers end: lifetimes of messages, delete markers, duplicate windows, waits of consumers.

Between two waits few steps are played, in less time than the shortest timer; a wait is longer than all timers that are
not `LONG`, so that at each comparison a timer is clearly over or clearly not. Where the order of two timers would be a
matter of chance, one stream does not have both (`Mode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from tests.broker.streams import history
from tests.broker.streams.history import LONG, History, Step, Writer

#: Seeds of these histories.
SEEDS: Final = range(2000, 3000)
_SECOND: Final = 1_000_000_000
#: Seconds of a brief timer.
_BRIEF: Final = 3
_SOON: Final = f"$now+{_BRIEF}"
#: Seconds of a lifetime that is longer than a wait for an acknowledgement, and steps before both.
_LONGER: Final = 7
#: Seconds that real servers may be late with a lifetime, and that a wait is longer than its timers.
_LATE: Final = 1.3
_MARGIN: Final = 0.7
#: Steps between two waits.
_BETWEEN_WAITS: Final = 6


class Mode(Enum):
    """Which timers of a stream and its consumers are brief."""

    LIFETIMES = 1
    ACKNOWLEDGEMENTS = 2
    #: A redelivery comes first, the end of the lifetime next; without markers, which would be delivered meanwhile.
    BOTH = 3


def _is_left_soon(config: Mapping[str, Any]) -> bool:
    """Returns whether a consumer goes when no client uses it for a moment."""
    return bool(config.get("inactive_threshold", LONG) < LONG)


def make(seed: int, parts: int, size: int) -> History:
    """Makes a history of the profile of its seed."""
    return _TimersWriter(seed).write(parts, size) if seed in SEEDS else history.make(seed, parts, size)


class _TimersWriter(Writer):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.timed = True
        self.keys = self.chance(0.2)
        #: Seconds until the timers of a stream are over, by its letter: of lifetimes, of its consumers.
        self.lives: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.modes: dict[str, Mode] = {}
        #: Messages may live for ever. Where age is a limit, real servers forget that at a start, without markers.
        self.forever = self.chance(0.6)

    def write(self, parts: int, size: int) -> History:
        found: list[tuple[Step, ...]] = []
        running = False
        for part in range(parts):
            steps = [] if part else self.beginning()
            if running:
                steps.append(self.wait())
            for row in range(size):
                steps.append(self.step())
                if row % _BETWEEN_WAITS == _BETWEEN_WAITS - 1 or row == size - 1:
                    steps.append(self.wait())
            # Servers are killed before parts with even numbers: then what timers did last is to be kept. A marker that
            # is made at a start may end before clients are there again.
            marked = any("subject_delete_marker_ttl" in each for each in self.configs.values())
            running = part % 2 == 0 and not marked and self.chance(0.6)
            found.append(tuple(steps[:-1] if running else steps))
        return History(self.seed, tuple(found), 0.75 * _BRIEF)

    def wait(self) -> Step:
        seconds = max(*self.lives.values(), *self.waits.values(), _BRIEF + _LATE) + _MARGIN
        letter = self.one(*self.configs)
        lasting = [name for name in self.pulled(letter) if not _is_left_soon(self.consumers[letter][name])]
        if not lasting or self.chance(0.7):
            return Step("wait", "", {"seconds": seconds})
        # One message: with more, the end of the request would come between deliveries. What is delivered is due again
        # before the wait is over.
        body = {"batch": 1, "expires": int(seconds * _SECOND)}
        return Step("wait", letter, {"seconds": seconds + _BRIEF, "consumer": self.one(*lasting), "body": body})

    def beginning(self) -> list[Step]:
        steps = [self.create("A")]
        if self.configs["A"].get("retention", "limits") == "limits" and not self.keys and self.chance(0.15):
            self.configs["B"] = self.copy()
            self.modes["B"] = self.modes["A"]
            self.configs["A"].pop("first_seq", None)
            steps.append(Step("create", "B", {"config": self.configs["B"]}))
        for _ in range(self.one(1, 2, 2, 3)):
            steps.append(self.consumer("A"))
            if "deliver_subject" in steps[-1].values["config"] and self.chance(0.8):
                steps.append(self.listen("A"))
        return steps

    def create(self, letter: str) -> Step:
        self.modes[letter] = self.one(*Mode)
        made = super().create(letter)
        self.note_lives(letter)
        return made

    def note_lives(self, letter: str) -> None:
        """Notes how long messages of a stream live, and their markers."""
        marker = self.configs[letter].get("subject_delete_marker_ttl", 0) / _SECOND
        life = {Mode.LIFETIMES: _BRIEF, Mode.ACKNOWLEDGEMENTS: 0, Mode.BOTH: _LONGER}[self.modes[letter]]
        if life and 0 < marker < 60:
            # A lifetime below that of markers becomes that one.
            life = max(life, marker) + _LATE + marker
        self.lives[letter] = max(self.lives.get(letter, 0), life + _LATE if life else _BRIEF)

    # Configurations

    def lifetimes(self, letter: str) -> dict[str, Any]:
        mode = self.modes[letter]
        found: dict[str, Any] = {}
        if self.chance(0.85):
            found["allow_msg_ttl"] = True
        if mode is not Mode.BOTH and self.chance(0.45):
            # A stream with markers has lifetimes and roll-ups.
            marker = self.one(_BRIEF, LONG // _SECOND) if mode is Mode.LIFETIMES else LONG // _SECOND
            found |= {"subject_delete_marker_ttl": marker * _SECOND, "allow_msg_ttl": True, "allow_rollup_hdrs": True}
        if self.chance(0.4):
            age = {Mode.LIFETIMES: _BRIEF * _SECOND, Mode.ACKNOWLEDGEMENTS: LONG, Mode.BOTH: _LONGER * _SECOND}[mode]
            if not self.forever or "subject_delete_marker_ttl" in found:
                found["max_age"] = age
        if self.chance(0.5) or found.get("max_age", LONG) < LONG:
            found["duplicate_window"] = _BRIEF * _SECOND
        return found

    def limits(self) -> dict[str, Any]:
        found: dict[str, Any] = {"discard": self.one("old", "old", "old", "new")}
        if self.chance(0.2):
            found["max_msgs"] = self.one(3, 5, 8)
        if self.chance(0.5):
            found["max_msgs_per_subject"] = self.one(1, 1, 2, 3)
            if found["discard"] == "new" and self.chance(0.3):
                found["discard_new_per_subject"] = True
        return found

    def config(self) -> dict[str, Any]:
        found = {
            **self.basics(),
            "allow_rollup_hdrs": self.chance(0.6),
            "allow_direct": self.chance(0.5),
            "deny_delete": self.chance(0.04),
            **self.lifetimes("A"),
        }
        if self.chance(0.1):
            found["first_seq"] = 100
        if self.chance(0.2) and found["storage"] == "file":
            found["compression"] = "s2"
        if "subject_delete_marker_ttl" in found:
            self.let_mark(found)
        return found

    def bucket(self) -> dict[str, Any]:
        return {**super().bucket(), **self.lifetimes("A"), "discard": "old"}

    def copy(self) -> dict[str, Any]:
        found = super().copy()
        # What expires in both would be deleted here and marked there in an order that is left to chance.
        if "subject_delete_marker_ttl" not in self.configs["A"] and self.chance(0.7):
            found["allow_msg_ttl"] = True
        return found

    def changed(self, letter: str) -> dict[str, Any]:
        config = dict(self.configs[letter])
        if letter == "B":
            return config
        limits, lifetimes = self.limits(), self.lifetimes(letter)
        for name in ("max_msgs", "max_msgs_per_subject", "discard_new_per_subject"):
            if self.chance(0.3):
                config.pop(name, None)
                if name in limits:
                    config[name] = limits[name]
        for name in ("max_age", "duplicate_window", "subject_delete_marker_ttl", "allow_msg_ttl"):
            if self.chance(0.4):
                config.pop(name, None)
                if name in lifetimes:
                    config[name] = lifetimes[name]
        if self.forever and "subject_delete_marker_ttl" not in config:
            config.pop("max_age", None)
        if config.get("max_age", LONG) < LONG:
            config["duplicate_window"] = _BRIEF * _SECOND
        if "subject_delete_marker_ttl" in config:
            self.let_mark(config)
        return config

    # Steps

    def step(self) -> Step:
        letter = self.one(*self.configs) if self.chance(0.3) else "A"
        kinds = {
            "publish": 40, "burst": 2, "delete": 5, "purge": 6, "get": 2, "direct": 4, "update": 2.5, "consumer": 4,
            "fetch": 18, "ack": 14, "listen": 4, "mute": 1, "drop": 1, "pause": 1.5,
        }  # fmt: skip
        if self.keys:
            kinds |= {"publish": 45, "direct": 8, "fetch": 8, "ack": 5}
        [kind] = self.random.choices(list(kinds), list(kinds.values()))
        step: Step = getattr(self, kind)(letter)
        return step

    def update(self, letter: str) -> Step:
        made = super().update(letter)
        self.note_lives(letter)
        return made

    def lifetime(self) -> str:
        """The value of `Nats-TTL`."""
        brief = {Mode.LIFETIMES: str(_BRIEF), Mode.ACKNOWLEDGEMENTS: "600", Mode.BOTH: f"{_LONGER}s"}[self.modes["A"]]
        values = [brief, brief, brief, brief, "600", "10m", "0", "100ms", "x", "-1"]
        if self.forever:
            values += ["never", "never"]
        config = self.configs["A"]
        if config.get("subject_delete_marker_ttl", 0) > _SECOND and config.get("max_msgs_per_subject") != 1:
            # These become the lifetime of markers.
            values += ["1", "1", "1s", "1500ms"]
        return str(self.one(*values))

    def publish(self, letter: str) -> Step:
        made = super().publish(letter)
        headers = made.values["headers"]
        for name in ("Nats-TTL", "Nats-Msg-Id"):
            headers.pop(name, None)
        if self.chance(0.55):
            headers["Nats-TTL"] = self.lifetime()
        if not self.keys and self.chance(0.2):
            headers["Nats-Msg-Id"] = self.one("one", "two")
        return made

    def consumer(self, letter: str) -> Step:
        made = super().consumer(letter)
        config: dict[str, Any] = made.values["config"]
        mode = self.modes[letter]
        if config.get("filter_subject", "").endswith(".none"):
            config["filter_subject"] = f"{{tag}}.{letter}.>"
        push = "deliver_subject" in config
        # `ack_wait` of the other profile is for its own waits.
        for name in ("ack_wait", "backoff"):
            config.pop(name, None)
        if config["ack_policy"] != "none":
            brief = mode is not Mode.LIFETIMES and self.chance(0.8)
            config["ack_wait"] = _BRIEF * _SECOND if brief else LONG
            if push and brief:
                config["max_deliver"] = 1 if mode is Mode.BOTH else self.one(1, 2, 2)
            if brief and config.get("max_deliver", 1) > 1 and self.chance(0.3):
                config["backoff"] = self.one([_BRIEF * _SECOND] * 2, [_BRIEF * _SECOND, LONG])
                del config["ack_wait"]
            wait = _BRIEF * (config.get("max_deliver", 1) if push else 1) if brief else 0
            self.waits[letter] = max(self.waits.get(letter, 0), wait)
        if "opt_start_seq" in config and "subject_delete_marker_ttl" in self.configs[letter]:
            # Real servers forget at a start what is still to come, which cannot be seen where there are markers.
            config["opt_start_seq"] = 1
        if not push and self.chance(0.12):
            config["inactive_threshold"] = _BRIEF * _SECOND
            self.waits[letter] = max(self.waits.get(letter, 0), _BRIEF + _LATE)
        return made

    def body(self) -> Any:
        # A request that ends by itself: silence takes as long as a timer.
        body: dict[str, Any] = {"batch": self.one(1, 1, 2, 3, 10), "expires": 200_000_000}
        if self.chance(0.7):
            body["no_wait"] = True
        return body

    def ack(self, letter: str) -> Step:
        word = self.one("+ACK", "+ACK", "+ACK", "", "-NAK", "-NAK", "+TERM", "+WPI", "delay")
        if word == "delay":
            brief = self.modes[letter] is not Mode.LIFETIMES
            word = f'-NAK {{"delay": {_BRIEF * _SECOND if brief else LONG}}}'
        return Step("ack", letter, {"consumer": self.some(letter), "which": self.random.randrange(6), "word": word})

    def pulled(self, letter: str) -> list[str]:
        return [name for name, each in self.consumers.get(letter, {}).items() if "deliver_subject" not in each]

    def fetch(self, letter: str) -> Step:
        pulled = self.pulled(letter)
        return (
            Step("fetch", letter, {"consumer": self.one(*pulled), "body": self.body()}) if pulled else self.ack(letter)
        )

    def listen(self, letter: str) -> Step:
        pushed = self.consumers.get(letter, {}).keys() - self.pulled(letter)
        return Step("listen", letter, {"consumer": self.one(*sorted(pushed)) if pushed else "p"})

    def pause(self, letter: str) -> Step:
        moments = ["2100-01-01T00:00:00Z"]
        if self.modes[letter] is not Mode.LIFETIMES:
            # A lifetime would end with the pause.
            moments += [_SOON, _SOON]
        body = {"pause_until": self.one(*moments)} if self.chance(0.75) else {}
        return Step("pause", letter, {"consumer": self.some(letter), "body": body})
