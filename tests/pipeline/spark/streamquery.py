"""A streaming query as a process of its own, which can be killed: STORE FOLDER [once].

It writes what the store gets into FOLDER/out, with its checkpoint beside it. With `once` it ends when all is read, and
says in FOLDER/summary.json how the files differ from the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(store: str, folder: Path, once: bool) -> None:
    from stantools.pipeline.spark.read import register
    from stantools.pipeline.spark.session import close_session, open_session

    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    spark = open_session("local[2]", name="followed", conf=conf)
    register(spark)
    stream = spark.readStream.format("stan").option("maxRowsPerTrigger", "5000").load(store)
    writing = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    if once:
        writing = writing.trigger(availableNow=True)
    query = writing.start(str(folder / "out"))
    query.awaitTermination()
    names = ["channel", "slice", "offset", "seq", "timestamp_ns", "data", "status"]
    files = spark.read.parquet(str(folder / "out")).select(names)
    table = spark.read.format("stan").load(store).select(names)
    payloads = [row[0].decode("utf-8", "replace") for row in files.where("status = 'ok'").select("data").collect()]
    summary = {
        "rows": files.count(),
        "more": files.exceptAll(table).count(),
        "missing": table.exceptAll(files).count(),
        "status": sorted(row[0] for row in files.select("status").distinct().collect()),
        "payloads": payloads,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    close_session(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "once" in sys.argv[3:])
