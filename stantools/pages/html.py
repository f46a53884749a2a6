"""Templates: rendering, and the format of values in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stantools import __version__
from stantools.escaping import escape_lines
from stantools.notation import counted, describe_ranges, format_size, format_time


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """Renders a template with values; `filters` are additional filters of this page, by name."""
    environment = _environment().overlay()
    environment.filters = {**environment.filters, **(filters or {})}
    return environment.get_template(template).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stantools.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names may hold control characters, bytes that are not UTF-8, and characters that change the direction of
        # writing.
        finalize=lambda value: (
            value if not isinstance(value, str) or isinstance(value, Markup) else escape_lines(value)
        ),
    )
    environment.filters.update(
        count=lambda value: f"{value:,}",
        counted=counted,
        size=lambda value: format_size(int(value)),
        moment=moment,
        ranges=describe_ranges,
    )
    return environment


def moment(timestamp_ns: int | None) -> str:
    """Formats a time to the second, in UTC; "" for None."""
    if timestamp_ns is None:
        return ""
    text = format_time(timestamp_ns)
    return text[:19].replace("T", " ") if text.endswith("Z") else text
