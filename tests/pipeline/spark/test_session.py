"""The session that everything on Spark runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stantools.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def _about(batches: Iterator[Any]) -> Iterator[Any]:
    import sys

    import pyarrow as pa

    import stantools

    for _ in batches:
        yield pa.record_batch({"python": [sys.executable], "package": [stantools.__file__]})


def test_workers_are_this_python_and_find_this_package(spark: SparkSession) -> None:
    import stantools

    row = spark.range(1, numPartitions=1).mapInArrow(_about, "python string, package string").first()
    assert row is not None
    assert row.python == sys.executable
    assert row.package == stantools.__file__


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    from stantools.pipeline.spark.session import open_session, session

    assert open_session() is spark
    with session("local[2]") as same:
        assert same is spark
    assert spark.range(3).count() == 3, "and not closed by who only used it"
    with pytest.raises(UsageError, match=r"running already, on local\[2\]"):
        open_session("local[4]")


def test_nothing_is_left_where_the_user_is(spark: SparkSession) -> None:
    assert not (Path.cwd() / "spark-warehouse").exists()
    assert not (Path.cwd() / "metastore_db").exists()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ.get("SPARK_LOCAL_IP") is None, "the environment of this process is as it was"
