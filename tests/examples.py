"""How often a test with generated examples is done: some of it in every run, and much more of it in the slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings


def with_examples(few: int, many: int, *positional: Any, **named: Any) -> Callable[[Callable[..., None]], Any]:
    """Makes a test of a function that takes examples and nothing else: `few` of them, and `many` in the slow run.

    Args:
        few: Examples in every run.
        many: Examples in the slow run.
        positional: Strategies, as for `hypothesis.given`.
        named: Strategies by name.
    """

    def decorate(body: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(examples: int) -> None:
            again = settings(max_examples=examples, deadline=None)
            again(given(*positional, **named)(body))()

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test

    return decorate
