"""The one Spark session of a test process; without Java or pyspark the tests that need it are skipped, visibly."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stantools.errors import StantoolsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Small and quick: what tests read is small, and several test processes share the machine.
TEST_CONF = {
    "spark.driver.memory": "1g",
    # Java that ends after two minutes has no use for carefully compiled code, nor for a collector with threads.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def skip_without_spark() -> None:
    """Skips, with the reason, where Spark cannot run."""
    if not importlib.util.find_spec("pyspark"):
        pytest.skip("pyspark is not installed: pip install '.[spark]'")
    from stantools.pipeline.spark.session import find_java

    try:
        find_java()
    except StantoolsError as problem:
        pytest.skip(problem.message)


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session was started: Java and its Python processes take relative paths from there."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_directory: Path) -> Iterator[SparkSession]:
    """A session on two threads of this machine. Tests that use it say `pytest.mark.xdist_group("spark")`.

    Tests of clusters run the same tests elsewhere: on STANTOOLS_TEST_MASTER, or at STANTOOLS_TEST_REMOTE by Connect.
    """
    skip_without_spark()
    from stantools.pipeline.spark.session import close_session, open_session

    master, remote = os.environ.get("STANTOOLS_TEST_MASTER"), os.environ.get("STANTOOLS_TEST_REMOTE")
    with contextlib.chdir(spark_directory):
        if remote:
            opened = open_session(remote=remote, name="stantools tests")
        else:
            opened = open_session(master or "local[2]", name="stantools tests", conf=TEST_CONF)
    yield opened
    close_session(opened)
