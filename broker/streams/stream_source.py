"""The origin of a stream's copies: the configuration of a mirror or source, and the header with its name.

Facts: jetstream-server.md section 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.streams.api_errors import RequestError, invalid_config, invalid_mapping
from broker.streams.requests import members, valid_name
from broker.streams.subject_mapping import MappingError, SubjectMapping
from stantools.nats.subjects import valid_pattern
from stantools.nats.subjecttree import overlap_each_other
from stantools.streamfiles.stream_config import OBJECT, OBJECTS, STRING, TIME, UINT

#: header that names the original of a copied message
HEADER: Final = b"Nats-Stream-Source"
#: Members of a mapping of subjects, and their types.
MAPPING: Final[Mapping[str, str]] = {"src": STRING, "dest": STRING}
_KINDS: Final[Mapping[str, str]] = {
    "name": STRING,
    "opt_start_seq": UINT,
    "opt_start_time": STRING,
    "filter_subject": STRING,
    "external": OBJECT,
    "subject_transforms": OBJECTS,
}
#: tree branches compared in the search for overlapping filters
_MOST_BRANCHES: Final = 200_000
#: Numbers of errors, for a mirror and for a source: name, filter together with transforms, overlap, transform's source
#: and destination.
_MIRROR: Final = (10142, 10150, 10152, (10151, 10154))
_SOURCE: Final = (10141, 10144, 10147, (10145, 10146))


def read_origin(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of a mirror or source that are not empty.

    Raises `RequestError` for an unknown member or one of a wrong type.
    """
    found = members(values, _KINDS, "StreamSource", strict=True)
    if found.get("opt_start_time"):
        # This checks the format only.
        members(found, {"opt_start_time": TIME}, "StreamSource")
    if transforms := found.get("subject_transforms"):
        found["subject_transforms"] = [
            {"src": "", "dest": "", **members(each, MAPPING, "subject_transforms", strict=True)} for each in transforms
        ]
    return {"name": "", **{name: value for name, value in found.items() if value}}


class SourceOrigin:
    """A mirror or source of a stream, and its selection of messages. Raises `RequestError`."""

    def __init__(self, values: Mapping[str, Any], *, mirror: bool) -> None:
        what = "mirror" if mirror else "source"
        name, both, crossing, mapped = _MIRROR if mirror else _SOURCE
        self.values, self.mirror = values, mirror
        self.name: str = values["name"]
        self.start: int = values.get("opt_start_seq", 0)
        time = {"opt_start_time": values.get("opt_start_time") or None}
        self.start_time: int = members(time, {"opt_start_time": TIME}, what).get("opt_start_time", 0)
        if not valid_name(self.name):
            raise RequestError(400, name, f"{'mirrored' if mirror else 'sourced'} stream name is invalid")
        if values.get("external"):
            raise invalid_config("external is not supported by this server")
        only, transforms = values.get("filter_subject", ""), values.get("subject_transforms", [])
        if only and transforms:
            text = f"{what} with multiple subject transforms cannot also have a single subject filter"
            raise RequestError(400, both, text)
        if only and not valid_pattern(only.encode()):
            raise RequestError(
                500, 10049, f"subject filter '{only}' for the {what}{'' if mirror else ':'} invalid subject"
            )
        try:
            self._mappings = [SubjectMapping(each["src"], each["dest"]) for each in transforms]
        except MappingError as error:
            raise invalid_mapping(error, f"{what} transform", *mapped) from None
        sources = [each.source for each in self._mappings]
        if len(set(sources)) < len(sources) or overlap_each_other(sources, _MOST_BRANCHES):
            text = "mirror subject filters can not overlap" if mirror else "source filters can not overlap"
            raise RequestError(400, crossing, text)
        #: patterns of the wanted subjects; empty for all
        self.patterns: tuple[bytes, ...] = tuple(sources) or ((only.encode(),) if only else ())
        destinations = [each["dest"].encode() or b">" for each in transforms]
        #: identity among the origins of a stream: name, filters, destinations
        self.key = (self.name.encode(), b"\f".join(self.patterns) or b">", b"\f".join(destinations) or b">")

    def subject(self, subject: bytes) -> bytes:
        """Returns the subject of the copy."""
        found = (each.of(subject) for each in self._mappings)
        return next((each for each in found if each is not None), subject)

    def mark(self, sequence: int, subject: bytes) -> bytes:
        """Returns the header value that names a message of this origin."""
        name, filters, destinations = self.key
        return b"%b: %b %d %b %b %b" % (HEADER, name, sequence, filters, destinations, subject)

    def marked(self, value: bytes) -> int:
        """Returns the sequence of the message that a header value names; 0 for another origin."""
        parts = value.split(b" ")
        # Older servers write only name and sequence.
        known = len(parts) > 1 and parts[1].isdigit() and parts[0] == self.key[0]
        return int(parts[1]) if known and (len(parts) < 4 or tuple(parts[2:4]) == self.key[1:]) else 0
