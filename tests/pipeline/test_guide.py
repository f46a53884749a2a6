"""The notebook of the pipeline guide runs, and prints what it says it prints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("spark")

PROGRAM = Path(__file__).parents[2] / "docs" / "notebook.py"


def test_the_notebook(
    spark: Any, spark_directory: Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("docs_notebook", PROGRAM)
    assert spec and spec.loader
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    text = notebook.GUIDE.read_text(encoding="utf-8")
    assert text.count("```text\n") >= 8
    monkeypatch.chdir(spark_directory)
    assert notebook.run(text, {"server_url": start_server().url}) == text
