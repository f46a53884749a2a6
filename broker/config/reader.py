"""From a command line to the options of a broker, or to an answer (server-operations.md sections 2, 5 and 10).

The client port opens after this step, so modules that read files or print texts are loaded on demand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Final

from broker.config.broker_options import (
    JETSTREAM,
    SQL,
    BrokerOptions,
    CommandAnswer,
    Environment,
    Parsed,
    SignalRequest,
)
from broker.config.catalogue import SECTIONS, Setting
from broker.config.flags import CommandLine, FlagError, parse_flags
from broker.config.process_options import build, tls_options
from broker.config.settings import BrokerSettings, FileContent
from broker.config.values import ConfigNode, ConfigurationError
from broker.nats.nats_options import VERSION as NATS_VERSION
from broker.streaming.streaming_options import VERSION
from stantools import __version__
from stantools.errors import UsageError
from stantools.escaping import shell_word
from stantools.format.quoting import quote
from stantools.server_options import Support, ValueType

#: exit code for features of the original that this broker lacks
EXIT_UNAVAILABLE: Final = 2
_EXIT_ERROR: Final = 1
_EXIT_USAGE: Final = 2
#: forms of the option for an exit code that the original does not have
_STRICT: Final = ("strict_exit", "strict_exit=true")
_SQL_DRIVERS: Final = ("mysql", "postgres")
_COLUMN = 36
#: width of the help
_WIDTH: Final = 80
_KINDS = {
    ValueType.STRING: " <string>",
    ValueType.INT: " <int>",
    ValueType.DURATION: " <duration>",
    ValueType.SIZE: " <size>",
    ValueType.LIST: " <string>",
    ValueType.ADDRESS: " <string>",
}


@dataclass(slots=True)
class ParsedSettings:
    """Content of command line and files, before options are built."""

    flags: CommandLine
    nats: FileContent = field(default_factory=FileContent)
    streaming: FileContent = field(default_factory=FileContent)
    settings: BrokerSettings = field(default_factory=lambda: BrokerSettings({}, {}, {}))  #: merged settings
    nats_path: str = ""  #: file that configures NATS, as given, or empty
    misplaced: list[str] = field(default_factory=list)  #: keys without effect, each with its place


def parse(argv: Sequence[str], environ: Environment | None = None) -> Parsed:
    """Parses the arguments after the program's name; never raises.

    Returns options for a broker, a `CommandAnswer` (help, version, errors), or a signal to send. The default
    environment is that of the process.
    """
    environ = os.environ if environ is None else environ
    try:
        flags = parse_flags(argv)
    except FlagError as problem:
        # Again at the end: the help is longer than a screen.
        help_text = f"{overview()}\n{'; '.join(filter(None, (problem.message, problem.remedy)))}\n"
        strict = any(each.lstrip("-").replace("-", "_") in _STRICT for each in argv if each.startswith("-"))
        return CommandAnswer(_EXIT_USAGE if strict else 0, stdout=help_text, stderr=f"{problem.message}\n")
    try:
        return _early_answer(flags) or _checked(configure(flags, environ), environ)
    except ConfigurationError as problem:
        return CommandAnswer(_EXIT_ERROR, stderr=f"{problem.message}\n")


def configure(flags: CommandLine, environ: Environment) -> ParsedSettings:
    """Reads the files of a command line and merges all settings."""
    flags.sizes()
    found = ParsedSettings(flags)
    config, stan_config = str(flags.settings.get("config", "")), str(flags.settings.get("stan_config", ""))
    found.nats_path = config or stan_config
    streaming_path = stan_config or config
    top: dict[str, ConfigNode] = {}
    if found.nats_path:
        from broker.config import grammar
        from broker.config.ineffective_keys import misplaced_keys
        from broker.config.nats_file import read_nats

        top = grammar.parse_file(found.nats_path, environ)
        found.nats = read_nats(top)
        found.misplaced += misplaced_keys(
            top, nats_file=found.nats_path, streaming_file=streaming_path, path=found.nats_path
        )
    if streaming_path:
        if streaming_path != found.nats_path:
            top = _streaming_file(streaming_path, environ)
            found.misplaced += misplaced_keys(
                top, nats_file=found.nats_path, streaming_file=streaming_path, path=streaming_path
            )
        from broker.config.file_reader import read_streaming

        found.streaming = read_streaming(top)
    found.settings = BrokerSettings(found.nats.settings, found.streaming.settings, flags.settings)
    return found


def _streaming_file(path: str, environ: Environment) -> dict[str, ConfigNode]:
    from broker.config import grammar

    try:
        return grammar.parse_file(path, environ)
    except ConfigurationError as problem:
        if problem.message.startswith(f"open {path}:"):
            raise ConfigurationError(f"error opening config file: {problem.message}") from None
        raise


def _early_answer(flags: CommandLine) -> CommandAnswer | SignalRequest | None:
    """Answers command lines that need no configuration."""
    given: Mapping[str, Setting] = flags.settings
    if not (flags.rest or any(given.get(each) for each in ("version", "help", "help_tls", "signal", "check"))):
        return None
    if given.get("version"):
        return CommandAnswer(0, stdout=f"{version_line()}\n")
    if given.get("help"):
        return CommandAnswer(0, stdout=overview())
    if given.get("help_tls"):
        return CommandAnswer(0, stdout=tls_help())
    for word in flags.rest:
        if word.lower() == "version":
            return CommandAnswer(0, stdout=f"{version_line()}\n")
        if word.lower() == "help":
            return CommandAnswer(0, stdout=overview())
        raise ConfigurationError(f"unrecognized command: {quote(word)}")
    if given.get("signal"):
        return SignalRequest(str(given["signal"]))
    if given.get("check") and not given.get("config") and not given.get("stan_config"):
        raise ConfigurationError("must specify [-c, --config] option to check configuration file syntax")
    return None


def _checked(found: ParsedSettings, environ: Environment) -> BrokerOptions | CommandAnswer:
    settings = found.settings
    if settings.given.get("routes.routes") and not (settings.text("routes.listen") or settings.number("routes.port")):
        raise ConfigurationError("solicited routes require cluster capabilities, e.g. --cluster")
    tls = tls_options(settings, found.flags.settings)
    if settings.switch("cluster.clustered"):
        if settings.text("store").upper() not in ("FILE", SQL, JETSTREAM):
            return CommandAnswer(_EXIT_ERROR, stdout="stan: clustering mode not supported with MEMORY store type\n")
        if settings.switch("partitioning"):
            problem = "stan: channels partitioning in clustering mode is not supported"
            return CommandAnswer(_EXIT_ERROR, stdout=f"{problem}\n")
        if settings.text("ft_group"):
            return CommandAnswer(_EXIT_ERROR, stdout="stan: clustering mode not supported in FT mode (ft_group)\n")
    if unavailable := _unavailable(found):
        listed = "".join(f"not available yet: {each}\n" for each in unavailable) + _sql_remedy(found.settings)
        return CommandAnswer(EXIT_UNAVAILABLE, stderr=listed)
    options = replace(build(settings, found.nats, tls, environ), config_file=found.nats_path)
    if settings.switch("check"):
        if found.misplaced:
            return CommandAnswer(_EXIT_ERROR, stderr="".join(f"{each}\n" for each in found.misplaced))
        problem = options.failure or options.monitoring.problem
        if problem:
            return CommandAnswer(_EXIT_ERROR, stderr=f"{problem}\n")
        checked = dict.fromkeys(str(found.flags.settings.get(name, "")) for name in ("config", "stan_config"))
        remarks = (*options.warnings, *options.nats_warnings)
        lines = (*remarks, *(f"configuration file {path} is valid" for path in checked if path))
        return CommandAnswer(0, stderr="".join(f"{each}\n" for each in lines))
    return replace(options, warnings=(*found.misplaced, *options.warnings))


def _unavailable(found: ParsedSettings) -> list[str]:
    """Returns requested features that this broker lacks."""
    settings = found.settings
    listed = []
    if settings.text("store").upper() == SQL and settings.text("sql.driver") in _SQL_DRIVERS:
        listed.append("SQL stores (--store SQL)")
    # a node's own nats-server has all of it
    if not settings.text("connection.urls") and not settings.switch("cluster.clustered"):
        listed += found.nats.unavailable
    return listed


def _sql_remedy(settings: BrokerSettings) -> str:
    if settings.text("store").upper() != SQL:
        return ""
    from stantools.sqlstore.address import parse_address

    try:
        database = shell_word(parse_address(settings.text("sql.source"), settings.text("sql.driver")).shown)
    except UsageError:
        database = "mysql://USER@HOST/DATABASE"
    return (
        f"`stantools salvage {database} --out NEW` writes a file store of it; then start with -st FILE -dir NEW, or "
        "move it to JetStream with `stantools migrate`\n"
    )


def version_line() -> str:
    """Returns the answer to `--version`: the original's line, expected by scripts, and this program's."""
    return f"nats-streaming-server version {VERSION}, nats-server: v{NATS_VERSION}\nstan-broker {__version__}"


def overview() -> str:
    lines = ["", "Usage: nats-streaming-server [options]"]
    for section in SECTIONS:
        flags = [option for _, option in section.options if option.flags]
        if flags:
            lines += ["", f"{section.title}:"]
        for option in flags:
            names = ", ".join(f"-{name}" if len(name) < 4 else f"--{name}" for name in option.flags)
            left = f"    {names}{_KINDS.get(option.value_type, '')}"
            default = f" (default: {option.shown_default})" if option.shown_default not in ("", "false") else ""
            note = f" [{option.support}]" if option.support is Support.UNAVAILABLE else ""
            text = wrap(
                f"{option.help}{default}{note}", _WIDTH - _COLUMN, break_long_words=False, break_on_hyphens=False
            )
            # at least two blanks, on the next line if necessary
            first = [left.ljust(_COLUMN) + text.pop(0)] if len(left) < _COLUMN - 1 else [left]
            lines += [*first, *(" " * _COLUMN + each for each in text)]
    return "\n".join((*lines, ""))


def tls_help() -> str:
    from broker.nats.tls import CIPHERS, CURVES

    lines = [
        "",
        "TLS configuration of the embedded NATS server, in the configuration file:",
        "",
        "tls {",
        '    cert_file: "certificate.pem"',
        '    key_file: "key.pem"',
        '    ca_file: "ca.pem"          # of client certificates',
        "    verify: true               # clients have to show one",
        '    cipher_suites: [ "..." ]',
        '    curve_preferences: [ "..." ]',
        "}",
        "",
        "Cipher suites:",
        *(f"    {name}" for name in CIPHERS),
        "",
        "Curves:",
        *(f"    {name}" for name in CURVES),
        "",
    ]
    return "\n".join(lines)
