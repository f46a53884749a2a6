"""The directories of one stream: found by the name by which its records are hashed, not by that of the directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.sources.source import Source
from stantools.store.directory import subject_matches
from stantools.streamfiles import highwayhash
from stantools.streamfiles.blocks import number_of_records
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.meta import meta_sum

#: names of other directories that are tried
_MAX_NAMES: Final = 64
#: blocks whose first records are tried
_MAX_BLOCKS: Final = 3


def grouped(source: Source, patterns: Iterable[str]) -> dict[tuple[str, str], list[StoredStream]]:
    """Returns the directories of each stream, by account and name; a directory with the stream's own name is first."""
    patterns = list(patterns)
    found: dict[tuple[str, str], list[StoredStream]] = {}
    for each in source.streams:
        if not each.path.is_dir():
            continue
        stream = identified(each)
        if not patterns or any(subject_matches(pattern, stream.name) for pattern in patterns):
            found.setdefault((stream.account, stream.name), []).append(stream)
    for (_, name), streams in found.items():
        streams.sort(key=lambda each: (each.path.name != name, each.path.name, each.node))
    return found


def identified(stream: StoredStream) -> StoredStream:
    """Returns a directory under the name by which its records are hashed."""
    config = stream.config
    inner = config.get("name") if config else None
    doubtful = any(each.kind is FlawKind.META_SUM for each in stream.flaws)
    if inner == stream.name and not doubtful:
        return stream
    names = [stream.name, *([inner] if isinstance(inner, str) and inner else []), *stream.other_names[:_MAX_NAMES]]
    for name in dict.fromkeys(names):
        candidate = replace(stream, flaws=[], hashed_as=name)
        if _has_records(candidate):
            return stream if name == stream.name else candidate
    if isinstance(inner, str) and inner and _has_sum(stream, inner):
        return replace(stream, flaws=[], hashed_as=inner)
    return stream


def _has_records(stream: StoredStream) -> bool:
    blocks = [*stream.blocks, *stream.other_blocks]
    for block in [each for each in blocks if each.size][:_MAX_BLOCKS]:
        with suppress(StoreUnreadableError), stream.content(block) as content:
            if number_of_records(content.data, [stream.name], [block.number]):
                return True
    return False


def _has_sum(stream: StoredStream, name: str) -> bool:
    with suppress(StoreUnreadableError):
        data, checksum = stream.read("meta.inf"), stream.read("meta.sum")
        return data is not None and checksum == meta_sum(data, highwayhash.stream_key(name))
    return False


def temporary_config(directory: StoredStream) -> dict[str, Any] | None:
    """Returns a configuration whose replacement was under way."""
    try:
        data = directory.read("meta.inf.tmp")
        values = json.loads(data) if data else None
    except NotPermittedError:
        raise
    except (StoreUnreadableError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
