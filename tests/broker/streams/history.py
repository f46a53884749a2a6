"""Random histories of streams: what clients and operators do, from a seed.

A history is a list of steps that say all that is needed to play them again, so that one can be printed, shortened and
played on any server. Names contain `{tag}`, which is replaced when it is played: many are played on one server.
Where a step depends on what is there, it says so in words that are filled in from what both servers agreed on last:
`$last`, `$first`, with an offset (`$last-2`); `$now+3` is a moment, some seconds later.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Nanoseconds that timers of a history have; a `wait` is longer than all of them.
SHORT: Final = 4_000_000_000
#: Until a message is delivered again; other than that until it expires, since no order of both is right.
_AGAIN: Final = 3_400_000_000
_SECOND: Final = 1_000_000_000
LONG: Final = 600 * _SECOND
#: Steps of a history with timers between two waits.
_BETWEEN_WAITS: Final = 5
#: Subjects of a stream, behind its prefix.
_WORDS: Final = ("a", "b", "c", "d.e", "d.f")
_PATTERNS: Final = ("a", "b", "*", "d.*", "d.>", ">", "*.e", "none")


@dataclass(frozen=True)
class Step:
    """One thing that is done.

    Attributes:
        kind: What.
        stream: The letter of its stream.
        values: How.
    """

    kind: str
    stream: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """What is done, in parts; between two parts servers end and start again.

    Attributes:
        seed: What it was made from.
        parts: The steps.
        spacing: Seconds in which the steps between two waits are played, before timers go off; 0 without timers.
    """

    seed: int
    parts: tuple[tuple[Step, ...], ...]
    spacing: float = 0


def make(seed: int, parts: int = 3, size: int = 16) -> History:
    """Makes a history.

    Args:
        seed: Which one.
        parts: Parts, between which servers start again.
        size: Steps of a part, about.
    """
    return Writer(seed).write(parts, size)


class Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.timed = self.random.random() < 0.3
        self.configs: dict[str, dict[str, Any]] = {}
        self.consumers: dict[str, dict[str, dict[str, Any]]] = {}
        self.keys = self.random.random() < 0.2

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def write(self, parts: int, size: int) -> History:
        steps = [[*self.beginning(), *(self.step() for _ in range(size))]]
        steps += [[self.step() for _ in range(size)] for _ in range(parts - 1)]
        if self.timed:
            steps = [self.spaced(part, first=part is steps[0]) for part in steps]
        return History(self.seed, tuple(tuple(part) for part in steps), 0.6 * SHORT / 1e9 if self.timed else 0)

    def spaced(self, steps: list[Step], *, first: bool) -> list[Step]:
        """Adds waits: few steps lie between two, so that a busy machine plays them before timers go off."""
        found: list[Step] = []
        for row, step in enumerate(steps):
            # At a start, timers of before are over.
            if row % _BETWEEN_WAITS == 0 and (row or not first):
                found.append(Step("wait"))
            found.append(step)
        return found

    def beginning(self) -> list[Step]:
        steps = [self.create("A")]
        # What becomes of a queue that is copied is told in the guide.
        if self.configs["A"].get("retention") == "limits" and self.chance(0.3):
            self.configs["B"] = self.copy()
            # A mirror of a stream without messages begins with the first copy.
            self.configs["A"].pop("first_seq", None)
            steps.append(Step("create", "B", {"config": self.configs["B"]}))
        for letter in self.configs:
            steps += [self.consumer(letter) for _ in range(self.one(0, 1, 1, 2))]
        return steps

    def create(self, letter: str) -> Step:
        self.configs[letter] = self.bucket() if self.keys else self.config()
        return Step("create", letter, {"config": self.configs[letter]})

    # Configurations

    def limits(self) -> dict[str, Any]:
        found: dict[str, Any] = {"discard": self.one("old", "old", "new")}
        if self.chance(0.4):
            found["max_msgs"] = self.one(1, 3, 5, 8)
        if self.chance(0.25):
            found["max_bytes"] = self.one(60, 120, 200, 400, 1000)
        if self.chance(0.4):
            found["max_msgs_per_subject"] = self.one(1, 2, 3)
            if found["discard"] == "new" and self.chance(0.4):
                found["discard_new_per_subject"] = True
        if self.chance(0.15):
            found["max_msg_size"] = self.one(10, 60)
        if self.timed and self.chance(0.4):
            found["max_age"] = SHORT
            found["duplicate_window"] = SHORT
        return found

    def basics(self) -> dict[str, Any]:
        return {
            "subjects": ["{tag}.A.>"],
            "storage": self.one("file", "file", "file", "memory"),
            "retention": self.one("limits", "limits", "limits", "workqueue", "interest"),
            **self.limits(),
        }

    def config(self) -> dict[str, Any]:
        found = self.basics()
        for name, probability in (
            ("allow_rollup_hdrs", 0.4), ("allow_direct", 0.5), ("deny_delete", 0.06), ("allow_msg_ttl", 0.3),
        ):  # fmt: skip
            if self.chance(probability):
                found[name] = True
        if "allow_rollup_hdrs" not in found and self.chance(0.08):
            found["deny_purge"] = True
        if self.timed and self.chance(0.25) and found["retention"] == "limits":
            found |= {"subject_delete_marker_ttl": 2 * _SECOND, "allow_msg_ttl": True, "allow_rollup_hdrs": True}
            found.pop("deny_purge", None)
            self.let_mark(found)
        if self.timed and self.chance(0.3):
            found["duplicate_window"] = SHORT
        if self.chance(0.1):
            found["first_seq"] = 100
        if self.chance(0.2) and found["storage"] == "file":
            found["compression"] = "s2"
        if self.chance(0.07):
            found["subject_transform"] = {"src": "{tag}.A.a", "dest": "{tag}.A.b"}
        if self.chance(0.05):
            found["max_consumers"] = 1
        if self.chance(0.05):
            found["consumer_limits"] = {"max_ack_pending": 3}
        return found

    def let_mark(self, config: dict[str, Any]) -> None:
        """Leaves room for what marks the end of a subject: without, real servers keep what is too old."""
        config.pop("max_msg_size", None)
        config.pop("discard_new_per_subject", None)
        config["discard"] = "old"

    def bucket(self) -> dict[str, Any]:
        """As clients make a bucket of keys."""
        return {
            "subjects": ["{tag}.A.>"],
            "storage": self.one("file", "memory"),
            "max_msgs_per_subject": self.one(1, 1, 3, 5),
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "discard": "new",
            **({"max_bytes": 500} if self.chance(0.2) else {}),
        }

    def copy(self) -> dict[str, Any]:
        """A mirror of the first stream, or one that has it as its source."""
        origin: dict[str, Any] = {"name": "{tag}A"}
        if self.chance(0.3):
            origin["filter_subject"] = "{tag}.A.a"
        elif self.chance(0.2):
            origin["subject_transforms"] = [{"src": "{tag}.A.a", "dest": "{tag}.B.moved"}]
        limits = self.limits()
        # Headers of copies have another size on real servers.
        for name in ("max_age", "duplicate_window", "max_bytes", "max_msg_size"):
            limits.pop(name, None)
        # A mirror counts what it does not want as deleted, and a full one does so where it stands.
        kind = {"mirror": {"name": "{tag}A"}} if self.chance(0.4) else {"sources": [origin]}
        limits.pop("discard", None)
        retention = "limits" if "mirror" in kind else self.one("limits", "workqueue")
        return {**kind, "retention": retention, "storage": "file", **limits}

    def changed(self, letter: str) -> dict[str, Any]:
        config = dict(self.configs[letter])
        limits = self.limits()
        for name in ("max_msgs", "max_bytes", "max_msgs_per_subject", "discard_new_per_subject", "max_msg_size"):
            if self.chance(0.4):
                config.pop(name, None)
                if name in limits:
                    config[name] = limits[name]
            if letter == "B" and name in ("max_bytes", "max_msg_size"):
                config.pop(name, None)
        if letter != "B" and self.chance(0.2):
            config["discard"] = limits["discard"]
        if "B" not in self.configs and self.chance(0.1):
            config["retention"] = self.one("limits", "interest", "workqueue")
        if self.chance(0.1):
            name = self.one("allow_direct", "allow_rollup_hdrs", "deny_delete", "deny_purge", "allow_msg_ttl")
            config[name] = not config.get(name, False)
        if "subject_delete_marker_ttl" in config:
            self.let_mark(config)
        if self.chance(0.03):
            config["sealed"] = True
        if self.chance(0.05):
            config["storage"] = self.one("file", "memory")
        return config

    # Steps

    def step(self) -> Step:
        letter = self.one(*self.configs) if self.chance(0.5) else "A"
        kinds = {
            "publish": 30, "burst": 6, "delete": 6, "purge": 5, "get": 3, "direct": 4, "update": 4, "consumer": 5,
            "fetch": 20, "ack": 18, "listen": 4, "mute": 1, "drop": 1, "again": 0.5, "pause": 0.7,
        }  # fmt: skip
        if self.keys:
            kinds |= {"publish": 40, "direct": 12, "fetch": 5, "ack": 2, "update": 1, "listen": 8}
        [kind] = self.random.choices(list(kinds), list(kinds.values()))
        step: Step = getattr(self, kind)(letter)
        return step

    def subject(self) -> str:
        return "{tag}.A." + self.one(*_WORDS)

    def pattern(self, letter: str) -> str:
        return "{tag}." + f"{letter}." + self.one(*_PATTERNS)

    def publish(self, letter: str) -> Step:
        headers: dict[str, str] = {}
        subject, size = self.subject(), self.one(0, 1, 5, 5, 20, 70)
        if self.keys:
            match self.one("put", "put", "put", "create", "update", "delete", "purge"):
                case "create":
                    headers["Nats-Expected-Last-Subject-Sequence"] = "0"
                case "update":
                    headers["Nats-Expected-Last-Subject-Sequence"] = self.one("$last", "$last-1", "3")
                case "delete":
                    headers["KV-Operation"], size = "DEL", 0
                case "purge":
                    headers |= {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
                    size = 0
        else:
            for name, probability, values in (
                ("Nats-Msg-Id", 0.15, ("one", "two", "three")),
                ("Nats-Rollup", 0.1, ("sub", "sub", "all", "SUB", "zork")),
                ("Nats-TTL", 0.08, ("1" if self.timed else "600", "never", "1h", "0", "x")),
                ("Nats-Expected-Last-Sequence", 0.06, ("$last", "$last", "$last-1", "0", "x")),
                ("Nats-Expected-Last-Subject-Sequence", 0.06, ("$last", "$last-1", "0", "x")),
                ("Nats-Expected-Last-Msg-Id", 0.04, ("one", "two", "")),
                ("Nats-Expected-Stream", 0.04, ("{tag}A", "other")),
                ("X", 0.1, ("y",)),
            ):
                if self.chance(probability):
                    headers[name] = self.one(*values)
            if "Nats-Rollup" in headers and self.chance(0.3):
                subject = "{tag}.A." + self.one("*", "d.*", ">")
        return Step("publish", "A", {"subject": subject, "size": size, "headers": headers})

    def burst(self, letter: str) -> Step:
        subjects = [self.subject() for _ in range(self.one(3, 6, 20))]
        return Step("burst", "A", {"subjects": subjects, "size": self.one(1, 10)})

    def sequence(self) -> str | int:
        return self.one("$last", "$first", "$first", "$last-1", "$first+1", "$last+1", 0, 3, 7)  # type: ignore[no-any-return]

    def delete(self, letter: str) -> Step:
        return Step(
            "delete", letter, {"body": {"seq": self.sequence(), **({"no_erase": True} if self.chance(0.4) else {})}}
        )

    def purge(self, letter: str) -> Step:
        body: dict[str, Any] = {}
        if self.chance(0.4):
            body["filter"] = self.pattern(letter)
        if self.chance(0.4):
            body["seq"] = self.sequence()
        if self.chance(0.3):
            body["keep"] = self.one(0, 1, 2, 9)
        return Step("purge", letter, {"body": body})

    def get(self, letter: str) -> Step:
        body = self.one(
            {"seq": self.sequence() or 1}, {"last_by_subj": self.pattern(letter)},
            {"next_by_subj": self.pattern(letter)},
            {"next_by_subj": self.pattern(letter), "seq": self.sequence()},
        )  # fmt: skip
        return Step("get", letter, {"body": body})

    def direct(self, letter: str) -> Step:
        if "mirror" in self.configs.get("B", ()):
            # Which of both answers for the origin is left to chance.
            letter = "B"
        if self.chance(0.5):
            return Step("direct", letter, {"subject": self.subject()})
        pattern = self.pattern(letter)
        body = self.one(
            {"seq": self.sequence()}, {"last_by_subj": pattern}, {"batch": 3, "seq": self.sequence()},
            {"batch": 20, "next_by_subj": pattern, "seq": 1}, {"multi_last": [pattern]},
            {"multi_last": [pattern, "{tag}.A.a"], "up_to_seq": "$last-1"}, {"batch": 9, "seq": 1, "max_bytes": 30},
        )  # fmt: skip
        return Step("direct", letter, {"body": body})

    def update(self, letter: str) -> Step:
        config = self.changed(letter)
        # Whether it is taken is not known here: often enough it is.
        self.configs[letter] = config if self.chance(0.8) else self.configs[letter]
        return Step("update", letter, {"config": config})

    def again(self, letter: str) -> Step:
        """Deletes a stream and makes another one of the same name."""
        if "B" in self.configs or self.keys:
            return self.publish(letter)
        self.consumers.pop(letter, None)
        self.configs[letter] = self.config()
        return Step("again", letter, {"config": self.configs[letter]})

    def consumer(self, letter: str) -> Step:
        known = self.consumers.setdefault(letter, {})
        name = self.one("c", "d", "e", "p")
        config: dict[str, Any] = {"ack_policy": self.one("explicit", "explicit", "explicit", "all", "none")}
        # Real servers soon remove a consumer that becomes durable.
        durable = "durable_name" in known[name] if name in known else self.chance(0.85)
        config |= {"durable_name": name} if durable else {"inactive_threshold": LONG}
        queue = self.configs[letter].get("retention") == "workqueue"
        if queue and (name in known or self.chance(0.9)):
            config["ack_policy"] = "explicit"
        config["deliver_policy"] = (
            self.one("all", "all", "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
            if not queue or (name not in known and self.chance(0.1)) else "all"
        )  # fmt: skip
        if config["deliver_policy"] == "by_start_sequence":
            # What is not for a consumer yet stays in real servers' streams with interest.
            config["opt_start_seq"] = 1 if self.configs[letter].get("retention") == "interest" else self.one(1, 3, 8)
        if config["deliver_policy"] == "by_start_time":
            config["opt_start_time"] = self.one("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z")
        if self.chance(0.4) or config["deliver_policy"] == "last_per_subject":
            config["filter_subject"] = self.pattern(letter)
        elif self.chance(0.15):
            config["filter_subjects"] = [f"{{tag}}.{letter}.a", f"{{tag}}.{letter}.d.>"]
        before = {key: value for key, value in known.get(name, {}).items() if key.startswith("filter_subject")}
        if before:
            # With others, real servers tell it nothing of what the old ones match, or what the new ones do.
            config = {key: value for key, value in config.items() if not key.startswith("filter_subject")} | before
        if "opt_start_seq" in config and {"filter_subject", "filter_subjects"} & set(config):
            # Real servers forget at a start what is still to come, which cannot be seen of these.
            config["opt_start_seq"] = 1
        if config["ack_policy"] != "none":
            config["ack_wait"] = _AGAIN if self.timed else LONG
            if self.chance(0.4):
                config["max_ack_pending"] = self.one(1, 2, 5, -1)
        if self.chance(0.25):
            config["max_deliver"] = self.one(1, 2, 3)
        if self.timed and self.chance(0.15) and config["ack_policy"] != "none":
            config |= {"backoff": [_AGAIN, _AGAIN], "max_deliver": self.one(2, 3, 5)}
            del config["ack_wait"]
        if self.chance(0.1):
            config["headers_only"] = True
        if self.chance(0.1):
            config["mem_storage"] = True
        if name == "p" or self.chance(0.05):
            config["deliver_subject"] = f"{{tag}}.to.{letter}.{name}"
        elif self.chance(0.15):
            config |= self.one({"max_batch": 3}, {"max_bytes": 200}, {"max_expires": _SECOND}, {"max_waiting": 1})
        known[name] = config
        return Step("consumer", letter, {"name": name, "config": config, "action": self.one("", "", "", "create")})

    def some(self, letter: str) -> str:
        return self.one(*(self.consumers.get(letter) or ["c"]))  # type: ignore[no-any-return]

    def body(self) -> Any:
        """The body of a request for messages."""
        body: dict[str, Any] = {"batch": self.one(1, 1, 2, 3, 10, 0, -1)}
        if self.chance(0.75):
            body["no_wait"] = True
        if "no_wait" not in body or self.chance(0.25):
            body["expires"] = self.one(300_000_000, 300_000_000, 300_000_000, -1, 5_000_000)
        if self.chance(0.2):
            body["max_bytes"] = self.one(1, 80, 150, 500)
        if self.chance(0.1):
            body["idle_heartbeat"] = self.one(100_000_000, 2_000_000, -1)
        return body if self.chance(0.95) else self.one("", "2", "x", {"batch": "x"}, {"group": "g", "no_wait": True})

    def fetch(self, letter: str) -> Step:
        return Step("fetch", letter, {"consumer": self.some(letter), "body": self.body()})

    def ack(self, letter: str) -> Step:
        word = self.one("+ACK", "+ACK", "+ACK", "+ACK", "", "-NAK", "-NAK", "+TERM", "+WPI", "+NXT", "zork", "delay")
        if word == "delay":
            word = f'-NAK {{"delay": {_AGAIN if self.timed else LONG}}}'
        if word == "+NXT" and self.chance(0.5):
            word = '+NXT {"batch": 2, "no_wait": true}'
        values = {"consumer": self.some(letter), "which": self.random.randrange(6), "word": word}
        if self.chance(0.1):
            values["place"] = (self.one(1, 2, 5, 99), self.one(1, 2, 5, 99))
        return Step("ack", letter, values)

    def listen(self, letter: str) -> Step:
        name = "p" if "p" in self.consumers.get(letter, {}) else self.some(letter)
        return Step("listen", letter, {"consumer": name})

    def mute(self, letter: str) -> Step:
        return Step("mute", letter, self.listen(letter).values)

    def drop(self, letter: str) -> Step:
        return Step("drop", letter, {"consumer": self.some(letter)})

    def pause(self, letter: str) -> Step:
        body = self.one({}, {"pause_until": "2100-01-01T00:00:00Z"}, {"pause_until": "2020-01-01T00:00:00Z"})
        return Step("pause", letter, {"consumer": self.some(letter), "body": body})
