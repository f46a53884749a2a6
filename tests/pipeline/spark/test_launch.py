"""Starting Spark's Java process and being interrupted meanwhile."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

java_gateway: Any = pytest.importorskip("pyspark.java_gateway")

from stantools.pipeline.spark.launch import Jvm  # noqa: E402


def test_an_interrupted_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = java_gateway.Popen

    def launch(conf: object, settings: dict[str, Any]) -> object:
        started.append(java_gateway.Popen(["sleep", "60"], **settings))
        raise KeyboardInterrupt

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(KeyboardInterrupt):
        Jvm(None, {}, quiet=True)  # type: ignore[arg-type]
    assert [process.poll() for process in started] == [-9]
    assert java_gateway.Popen is popen
