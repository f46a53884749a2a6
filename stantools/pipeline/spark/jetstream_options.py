"""The options of the sink `jetstream`: where to, into which streams, and what these keep."""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stantools.errors import UsageError
from stantools.migration.plan.names import name_problem, reserved, stream_name, subject_name
from stantools.migration.plan.planner import METADATA_CHANNEL
from stantools.migration.plan.remarks import DUPLICATE_WINDOW
from stantools.nats.context import context_folder, over, read_context
from stantools.nats.options import ConnectOptions, split_servers
from stantools.notation import parse_duration, parse_size
from stantools.pipeline.tables.options import count, read_value, secret_of, truth
from stantools.secret import Secret

#: Every option, as it is written in the documentation, and what its value is.
NAMES: Final = {
    "servers": "URLs of NATS servers, with commas; by default nats://127.0.0.1:4222",
    "context": "the name of a context of the nats command, read where the job is started",
    "user": "user name",
    "password": "the user's password",
    "passwordEnv": "the variable that holds it where tasks run",
    "passwordFile": "the file that holds it where tasks run",
    "token": "instead of user and password",
    "tokenEnv": "the variable that holds it where tasks run",
    "tokenFile": "the file that holds it where tasks run",
    "nkey": "file with the seed of an nkey",
    "creds": "credentials file",
    "tlsCa": "certificates of the authorities to trust",
    "tlsCert": "our certificate",
    "tlsKey": "the key of our certificate",
    "tlsInsecure": "true does not check the server's certificate",
    "tlsHostname": "the name in the server's certificate, if not the URL's",
    "tlsFirst": "true where the server wants TLS at once",
    "jsDomain": "JetStream domain",
    "jsApiPrefix": "what the subjects of the JetStream API begin with",
    "inboxPrefix": "what the subjects begin with on which answers come",
    "timeout": "seconds to wait for a connection or an answer",
    "patience": "seconds without progress after which a server that does not answer is given up",
    "stream": "the stream's name; without it each channel gets a stream of its own",
    "streamPrefix": "what names of streams begin with",
    "subjectPrefix": "tokens in front of every subject: stan makes stan.orders of orders",
    "originHeaders": "off leaves out the headers with channel, sequence and time",
    "damaged": "refuse (the default) or leave-out: what to do with rows that are no intact messages",
    "fillerLimit": "the most sequences without a message that are filled and emptied again, for each stream",
    "parallel": "streams that one task writes at the same time",
    "spoolDir": "where tasks put messages aside; by default where Spark has its temporary files",
    "storage": "file or memory",
    "replicas": "copies of each stream",
    "maxAge": "how long messages are kept, such as 72h",
    "maxMsgs": "how many messages are kept",
    "maxBytes": "how many bytes are kept, such as 10GB",
    "compression": "none or s2: how the server stores messages (from 2.10 on)",
}
_CANONICAL = {name.lower(): name for name in NAMES}
#: What Spark adds to the options of a stream by itself.
_SPARKS = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
#: From this version on streams have metadata.
_METADATA_FROM = (2, 10, 0)


class Damaged(enum.StrEnum):
    """What to do with rows that are no intact messages."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave-out"


@dataclass(frozen=True)
class SinkOptions:
    """How messages are written into streams.

    Attributes:
        connect: How to connect, but for secrets that are elsewhere.
        password: The user's password.
        token: The token to log in with.
        patience: Seconds without progress until a server is given up.
        stream: Name of the only stream.
        stream_prefix: What names of streams begin with.
        subject_prefix: What subjects begin with, with its dot.
        origin: Messages get headers with channel, sequence and time.
        damaged: What to do with rows that are no intact messages.
        filler_limit: The most sequences without a message that are filled.
        parallel: Streams that one task writes at the same time.
        spool_dir: Where tasks put messages aside.
        settings: What the streams get, as the JetStream API calls it.
    """

    connect: ConnectOptions
    password: Secret = Secret()
    token: Secret = Secret()
    patience: float = 60.0
    stream: str | None = None
    stream_prefix: str = ""
    subject_prefix: str = ""
    origin: bool = True
    damaged: Damaged = Damaged.REFUSE
    filler_limit: int = 1_000_000
    parallel: int = 4
    spool_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def connecting(self) -> ConnectOptions:
        """Returns how to connect from where this runs.

        Raises:
            UsageError: It contradicts itself, or a variable is not set here.
            StoreUnreadableError: A file cannot be read here.
        """
        given = {name: getattr(self.connect, name) for name in self.connect.__dataclass_fields__}
        for name, secret in (("password", self.password), ("token", self.token)):
            if secret.variable is not None and not os.environ.get(secret.variable):
                raise UsageError(
                    f"the environment variable {secret.variable}, which option {name}Env names, is not set where a "
                    "task runs",
                    "set it on all workers, or use a file that they can read",
                )
            if (text := secret.word(name)) is not None:
                given[name] = text
        return ConnectOptions(**given).checked()

    def names(self, channel: str) -> tuple[str, str]:
        """Returns the stream and the subject of a channel.

        Raises:
            UsageError: They cannot be these.
        """
        name = self.stream or stream_name(channel, self.stream_prefix)
        subject = subject_name(channel, self.subject_prefix)
        problem = name_problem(name)
        if not problem and (system := reserved(subject)):
            problem = f"its subject {subject} belongs to the system ({system})"
        if problem:
            raise UsageError(f"channel {channel}: stream {name!r}: {problem}", "give another prefix")
        return name, subject

    def config(self, channel: str, version: tuple[int, int, int]) -> dict[str, Any]:
        """Returns the configuration that a channel's stream has in the end.

        Args:
            channel: The channel.
            version: The server's version.
        """
        name, subject = self.names(channel)
        age = self.settings["max_age"]
        config = {
            "name": name,
            "subjects": [subject],
            "description": f"NATS Streaming channel {channel}"[:1000],
            "retention": "limits",
            "discard": "old",
            "duplicate_window": min(DUPLICATE_WINDOW, age) if age else DUPLICATE_WINDOW,
            **self.settings,
        }
        if version >= _METADATA_FROM:
            config["metadata"] = {METADATA_CHANNEL: channel}
        return config

    def spool_folder(self) -> str | None:
        """Returns where messages are put aside; None for the system's place."""
        if self.spool_dir:
            return self.spool_dir
        # Spark tells its Python workers so where its temporary files belong.
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        return next((folder for folder in folders if Path(folder).is_dir() and folder), None)


def sink_options(values: Mapping[str, str]) -> SinkOptions:
    """Reads the options of the sink.

    Args:
        values: What was given, by name, whatever the case; see `NAMES`.

    Raises:
        UsageError: A name is not known, or a value makes no sense.
        StoreUnreadableError: The context cannot be read.
    """
    given = _known(values)
    connect = ConnectOptions(
        servers=split_servers([given.get("servers", "")]),
        user=given.get("user"),
        nkey=_path(given, "nkey"),
        creds=_path(given, "creds"),
        tls_ca=_path(given, "tlsCa"),
        tls_cert=_path(given, "tlsCert"),
        tls_key=_path(given, "tlsKey"),
        tls_insecure=read_value(given, "tlsInsecure", truth, False, NAMES),
        tls_hostname=given.get("tlsHostname"),
        tls_first=read_value(given, "tlsFirst", truth, False, NAMES),
        domain=given.get("jsDomain"),
        api_prefix=given.get("jsApiPrefix"),
        inbox_prefix=given.get("inboxPrefix"),
        timeout=read_value(given, "timeout", _seconds, 5.0, NAMES),
    )
    password, token = secret_of(given, "password"), secret_of(given, "token")
    if "context" in given:
        stated = [name for name, secret in (("password", password), ("token", token)) if secret.given]
        # A login that is given takes the place of the context's, wherever its secret is.
        marked = ConnectOptions(**{**_fields(connect), **dict.fromkeys(stated, "given")})
        connect = over(marked, read_context(given["context"], context_folder()))
        connect = ConnectOptions(**{**_fields(connect), **dict.fromkeys(stated, None)})
    if connect.embedded:
        raise UsageError("option servers: embedded is no server that tasks could reach", "give the URL of a server")
    options = SinkOptions(
        connect=connect,
        password=password,
        token=token,
        patience=read_value(given, "patience", _seconds, 60.0, NAMES),
        stream=given.get("stream"),
        stream_prefix=given.get("streamPrefix", ""),
        subject_prefix=_dotted(given.get("subjectPrefix", "")),
        origin=read_value(given, "originHeaders", truth, True, NAMES),
        damaged=read_value(given, "damaged", _damaged, Damaged.REFUSE, NAMES),
        filler_limit=read_value(given, "fillerLimit", count, 1_000_000, NAMES),
        parallel=read_value(given, "parallel", _several, 4, NAMES),
        spool_dir=given.get("spoolDir"),
        settings={
            "storage": read_value(given, "storage", _one_of("file", "memory"), "file", NAMES),
            "num_replicas": read_value(given, "replicas", _copies, 1, NAMES),
            "max_age": read_value(given, "maxAge", parse_duration, 0, NAMES),
            "max_msgs": read_value(given, "maxMsgs", _several, -1, NAMES),
            "max_bytes": read_value(given, "maxBytes", parse_size, -1, NAMES),
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            **_compression(given),
        },
    )
    if options.stream and options.stream_prefix:
        raise UsageError("the options stream and streamPrefix exclude each other", "give one of them")
    options.names("orders")
    # Where secrets are in variables and files, they are looked up where they are needed.
    _without_login(options).checked()
    return options


def _known(values: Mapping[str, str]) -> dict[str, str]:
    given = {}
    for name, value in values.items():
        if name.lower() in _SPARKS:
            continue
        known = _CANONICAL.get(name.lower())
        if known is None:
            near = difflib.get_close_matches(name.lower(), _CANONICAL, 3, 0.6)
            hint = f"did you mean {' or '.join(_CANONICAL[each] for each in near)}? " if near else ""
            raise UsageError(f"there is no option {name!r}", f"{hint}the options are {', '.join(NAMES)}")
        given[known] = value
    return given


def _without_login(options: SinkOptions) -> ConnectOptions:
    """Returns how to connect with stand-ins for secrets, to check all the rest."""
    given = _fields(options.connect)
    for name, secret in (("password", options.password), ("token", options.token)):
        if secret.given:
            given[name] = "secret"
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if given[name] is not None:
            given[name] = Path(os.devnull)
    given["tls_ca"] = None
    if given["tls_cert"] is not None and given["tls_key"] is not None:
        given["tls_cert"] = given["tls_key"] = None
    return ConnectOptions(**given)


def _fields(options: ConnectOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]) if name in given else None


def _dotted(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def _several(text: str) -> int:
    if (number := count(text)) < 1:
        raise ValueError(f"{text!r} is not 1 or more")
    return number


def _copies(text: str) -> int:
    if not 1 <= (number := count(text)) <= 5:
        raise ValueError(f"{text!r} is not a number from 1 to 5")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise ValueError(f"{text!r} is not a number of seconds")
    return seconds


def _damaged(text: str) -> Damaged:
    return Damaged(_one_of(*Damaged)(text.lower()))


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


def _compression(given: Mapping[str, str]) -> dict[str, str]:
    """Older servers do not know it, so it is only there if it was asked for."""
    kind = read_value(given, "compression", _one_of("none", "s2"), "none", NAMES)
    return {"compression": kind} if "compression" in given else {}
