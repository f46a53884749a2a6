"""Settings by name: defaults, overridden by a file, overridden by the command line (server-operations.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.config.catalogue import DEFAULTS, Setting
from stantools.errors import UsageError
from stantools.options import declared
from stantools.server_options import ServerOption

if TYPE_CHECKING:
    from broker.config.values import ConfigNode

#: settings for which zero or an empty text means the default
_ZERO_IS_DEFAULT: Final = frozenset(name for name in DEFAULTS if name.startswith(("nats.", "monitoring.")))
#: settings for which the file overrides the command line
_FILE_WINS: Final = frozenset(("cluster.peers", "encryption.key"))

_Options = TypeVar("_Options")


@dataclass(slots=True)
class FileContent:
    """Content of a file for one of the two servers."""

    settings: dict[str, Setting] = field(default_factory=dict)
    top: Mapping[str, ConfigNode] = field(default_factory=dict)  #: the whole file
    unavailable: list[str] = field(default_factory=list)  #: features in the file that the server lacks, for people
    warnings: list[str] = field(default_factory=list)  #: lines for the log at the start


class BrokerSettings:
    def __init__(
        self, nats: Mapping[str, Setting], streaming: Mapping[str, Setting], flags: Mapping[str, Setting]
    ) -> None:
        self.given: dict[str, Setting] = {**nats, **streaming}
        for name, value in flags.items():
            if name not in _FILE_WINS or not self.given.get(name):
                self.given[name] = value
        for name in _ZERO_IS_DEFAULT:
            if not self.given.get(name, True):
                del self.given[name]
        self._values: dict[str, Setting] = {**DEFAULTS, **self.given}

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        value = self._values.get(name, 0)
        return value if isinstance(value, int) else 0

    def switch(self, name: str) -> bool:
        return self._values.get(name, False) is True

    def of(self, owner: type[_Options], prefix: str = "", **others: Any) -> _Options:
        """Returns options of a class from the settings of its fields; UsageError for a value out of range."""
        return owner(**{**self.fields(owner, prefix), **others})

    def fields(self, owner: type, prefix: str = "") -> dict[str, Any]:
        """Returns the values of the declared fields of a class, by name."""
        found = {}
        for name, option in declared(owner):
            value = self._values.get(prefix + name)
            if value is not None and isinstance(option, ServerOption):
                if problem := option.check(value):
                    raise UsageError(problem)
                found[name] = option.of(value)
        return found
