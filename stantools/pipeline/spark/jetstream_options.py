"""Options of the sink `jetstream`: the server, the streams, and their settings."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stantools.errors import UsageError
from stantools.migration.plan.migration_plan import DESCRIPTION, METADATA_CHANNEL
from stantools.migration.plan.remarks import DUPLICATE_WINDOW
from stantools.nats.connect_options import DEFAULT_SERVER, ConnectOptions, split_servers
from stantools.nats.context import context_folder, over, read_context
from stantools.nats.stream_names import dotted, name_problem, reserved, stream_name, subject_name
from stantools.notation import parse_duration, parse_size
from stantools.options import Option, declared
from stantools.pipeline.tables.option_texts import (
    NUMBER,
    SECONDS,
    TRUTH,
    GivenOptions,
    names_of,
    spark_name,
    spark_option,
)
from stantools.secret import Secret

#: Options that Spark adds to those of a stream.
_SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
#: First server version with metadata of streams.
_METADATA_FROM = (2, 10, 0)


class Damaged(enum.StrEnum):
    """Treatment of rows that are not intact messages."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave-out"


def _connection() -> dict[str, tuple[str, Option]]:
    """Returns the options of `ConnectOptions` under their Spark names, each with its field name."""
    others = {
        "servers": f"URLs of NATS servers, separated by commas; default: {DEFAULT_SERVER}",
        "context": "name of a context of the nats command, read where the job starts",
        "timeout": "seconds to wait for a connection or an answer",
    }
    options = {}
    for field, option in declared(ConnectOptions):
        name = field if field == "servers" else spark_name(option.flag(field).replace("-", "_"))
        text = others.get(field) or option.help.removesuffix(".")
        text = text if text.startswith(("JetStream", "URL")) else text[0].lower() + text[1:]
        if option.default is False:
            options[name] = field, TRUTH.like(help=f"true: {text}")
        else:
            options[name] = field, SECONDS.like(help=text) if field == "timeout" else option.like(help=text)
    return options


_CONNECTION: Final = _connection()
#: Settings of streams by their names in the JetStream API.
_SETTINGS: Final = {
    "storage": "storage",
    "num_replicas": "replicas",
    "max_age": "maxAge",
    "max_msgs": "maxMsgs",
    "max_bytes": "maxBytes",
    "compression": "compression",
}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    #: Connection, without secrets that tasks look up.
    connect: ConnectOptions = spark_option(**{name: option for name, (_, option) in _CONNECTION.items()})
    password: Secret = spark_option(
        Secret(),
        password=Option(help="the user's password"),
        passwordEnv=Option(help="the variable that holds it where tasks run"),
        passwordFile=Option(help="the file that holds it where tasks run"),
    )
    token: Secret = spark_option(
        Secret(),
        token=Option(help="instead of user and password"),
        tokenEnv=Option(help="the variable that holds it where tasks run"),
        tokenFile=Option(help="the file that holds it where tasks run"),
    )
    patience: float = spark_option(
        60.0,
        patience=SECONDS.like(help="seconds without progress after which the connection counts as lost"),
    )
    stream: str | None = spark_option(
        None, stream=Option(help="the stream's name; without it each channel gets a stream of its own")
    )
    stream_prefix: str = spark_option("", streamPrefix=Option(help="prefix of the names of streams"))
    subject_prefix: str = spark_option(
        "",
        subjectPrefix=Option(
            help="tokens in front of every subject: with stan, orders becomes stan.orders", read=dotted
        ),
    )
    #: Add headers with channel, sequence and time.
    origin: bool = spark_option(
        True, originHeaders=TRUTH.like(help="off omits the headers with channel, sequence and time")
    )
    damaged: Damaged = spark_option(
        Damaged.REFUSE,
        damaged=Option(
            help="refuse (the default) or leave-out: treatment of rows that are not intact messages", choices=Damaged
        ),
    )
    filler_limit: int = spark_option(
        1_000_000,
        fillerLimit=NUMBER.like(
            help="maximum number of missing sequences per stream that are filled and deleted again"
        ),
    )
    parallel: int = spark_option(4, parallel=NUMBER.like(help="streams that a task writes at the same time", least=1))
    spool_dir: str | None = spark_option(
        None,
        spoolDir=Option(help="directory for the tasks' temporary files; default: Spark's own"),
    )
    #: Settings of the streams, named as in the JetStream API.
    settings: Mapping[str, Any] = spark_option(
        storage=Option(help="file or memory", choices=("file", "memory")),
        replicas=NUMBER.like(help="number of replicas of each stream", least=1, most=5),
        maxAge=Option(help="maximum age of messages, such as 72h", read=parse_duration),
        maxMsgs=NUMBER.like(help="maximum number of messages", least=1),
        maxBytes=Option(help="maximum bytes, such as 10GB", read=parse_size),
        compression=Option(
            help="none or s2: compression of stored messages (server 2.10 or later)", choices=("none", "s2")
        ),
    )

    def connect_options(self) -> ConnectOptions:
        """Returns the connection with the secrets of this machine.

        Raises `UsageError` if a variable is not set here, `StoreUnreadableError` if a file cannot be read here.
        """
        secrets: dict[str, Any] = {}
        for name, secret in (("password", self.password), ("token", self.token)):
            if secret.variable is not None and not os.environ.get(secret.variable):
                raise UsageError(
                    f"the environment variable {secret.variable}, which option {name}Env names, is not set where a "
                    "task runs",
                    "set it on all workers, or name a file that they can read",
                )
            if (text := secret.word(name)) is not None:
                secrets[name] = text
        return replace(self.connect, **secrets).checked()

    def names(self, channel: str) -> tuple[str, str]:
        name = self.stream or stream_name(channel, self.stream_prefix)
        subject = subject_name(channel, self.subject_prefix)
        problem = name_problem(name)
        if not problem and (system := reserved(subject)):
            problem = f"its subject {subject} belongs to the system ({system})"
        if problem:
            raise UsageError(f"channel {channel}: stream {name!r}: {problem}", "give another prefix")
        return name, subject

    def config(self, channel: str, version: tuple[int, int, int]) -> dict[str, Any]:
        """Returns the final configuration of a channel's stream, for a version of the server."""
        name, subject = self.names(channel)
        age = self.settings["max_age"]
        config = {
            "name": name,
            "subjects": [subject],
            "description": f"{DESCRIPTION}{channel}"[:1000],
            "retention": "limits",
            "discard": "old",
            "duplicate_window": min(DUPLICATE_WINDOW, age) if age else DUPLICATE_WINDOW,
            **self.settings,
        }
        if version >= _METADATA_FROM:
            config["metadata"] = {METADATA_CHANNEL: channel}
        return config

    def spool_folder(self) -> str | None:
        """Returns the directory of temporary files; None for the system's."""
        if self.spool_dir:
            return self.spool_dir
        # Spark tells its Python workers the directory of temporary files this way.
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        return next((folder for folder in folders if Path(folder).is_dir() and folder), None)


def sink_options(values: Mapping[str, str]) -> SinkOptions:
    """Parses the options of the sink from texts by name (`names_of(SinkOptions)`)."""
    given = GivenOptions(values, names_of(SinkOptions), _SPARK_OPTIONS)
    named = {field: value for name, (field, _) in _CONNECTION.items() if (value := given.value(name)) is not None}
    context = named.pop("context", None)
    connect = ConnectOptions(**{**named, "servers": split_servers([named.get("servers", "")])})
    password, token = given.secret("password"), given.secret("token")
    if context is not None:
        stated = [name for name, secret in (("password", password), ("token", token)) if secret.given]
        # A given login replaces the context's, wherever its secret is.
        marked: dict[str, Any] = dict.fromkeys(stated, "given")
        unmarked: dict[str, Any] = dict.fromkeys(stated)
        connect = over(replace(connect, **marked), read_context(context, context_folder()))
        connect = replace(connect, **unmarked)
    if connect.embedded:
        raise UsageError("option servers: tasks cannot reach embedded", "give the URL of a server")
    settings = {name: value for name, each in _SETTINGS.items() if (value := given.value(each)) is not None}
    defaults = {"storage": "file", "num_replicas": 1, "max_age": 0, "max_msgs": -1, "max_bytes": -1}
    # Only set on request: older servers do not know `compression`.
    fixed = {"max_msgs_per_subject": -1, "max_msg_size": -1}
    options = SinkOptions(
        **given.fields(SinkOptions),
        connect=connect,
        password=password,
        token=token,
        settings=defaults | settings | fixed,
    )
    if options.stream and options.stream_prefix:
        raise UsageError("the options stream and streamPrefix exclude each other", "give one of them")
    options.names("orders")
    # Secrets in variables and files are looked up where they are needed.
    _without_login(options).checked()
    return options


def _without_login(options: SinkOptions) -> ConnectOptions:
    """Returns the connection with placeholders for secrets, to check the rest."""
    connect = options.connect
    stated = [name for name, secret in (("password", options.password), ("token", options.token)) if secret.given]
    stand_ins: dict[str, Any] = dict.fromkeys(stated, "secret")
    whole = connect.tls_cert is not None and connect.tls_key is not None
    return replace(
        connect,
        **stand_ins,
        tls_ca=None,
        tls_cert=None if whole or connect.tls_cert is None else Path(os.devnull),
        tls_key=None if whole or connect.tls_key is None else Path(os.devnull),
    )
