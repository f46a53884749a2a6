"""The notebook of the pipeline guide runs, and prints what it says it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import load

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

PROGRAM = Path(__file__).parents[2] / "docs" / "notebook.py"


def test_the_notebook(
    spark: Any, spark_directory: Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = load(PROGRAM)
    text = notebook.GUIDE.read_text(encoding="utf-8")
    assert text.count("```text\n") >= 8
    monkeypatch.chdir(spark_directory)
    assert notebook.run(text, {"server_url": start_server().url}) == text
