"""`stantools merge`: the nodes of a cluster as one standalone store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli.click_options import (
    dry_run_option,
    given,
    node_option,
    options_of,
    reading_options,
    stores_argument,
    verb,
)
from stantools.cli.progress import ByteProgress
from stantools.cli.salvage import carry_out, check_out, salvage_streams
from stantools.errors import UsageError
from stantools.options import FORCE, OUT
from stantools.recovery.recovery_options import MergeOptions, StreamSalvageOptions

if TYPE_CHECKING:
    from stantools.store.read_options import ReadOptions


@verb("merge", "table", "json")
@stores_argument("NODE...")
@node_option
@given(out=OUT)
@options_of(MergeOptions, "options", without=("generation",))
@options_of(StreamSalvageOptions, "stream_options")
@given(force=FORCE.like(help="Continue even though a server seems to be using a node."))
@dry_run_option
@reading_options(unchecked=False)
def command(
    stores: tuple[Path, ...],
    out: Path | None,
    options: MergeOptions,
    stream_options: StreamSalvageOptions,
    force: bool,
    dry_run: bool,
    read_options: ReadOptions,
) -> int:
    """Merge the nodes of a cluster into one stand-alone store with all their data.

    A NODE is a directory with the Raft directory and the file store of a node, or one of the two. One node suffices,
    more are better: a stale, damaged or empty one does no harm. No node is changed.

    Each message of a channel is taken once, from any store, or from a Raft log if no store has it. If nodes have
    different messages of one sequence, the log decides, otherwise the majority of the nodes; the conflict is reported.
    Clients and subscriptions come from the newest snapshot and the log after it, in which the copies of all nodes are
    compared; a message pending in any copy stays pending. Data written outside of the cluster, deleted in it, or left
    on an abandoned branch is reported and left out.

    The new store is written, verified and described as by `stantools salvage`.

    Nodes of a nats-server's cluster are JetStream directories: their streams come into one stand-alone directory, with
    the messages of all nodes and of their Raft logs.

    Exit code 0: complete. 5: done, but some data is on none of these nodes (the plan names it); 1 with --dry-run.
    """
    from stantools.cli.opening import check_stopped, open_sources
    from stantools.recovery.merge import plan_merge
    from stantools.recovery.merge.merge_report import merge_report
    from stantools.sources.source import Capability

    check_out(out, dry_run=dry_run)
    sources = open_sources(stores, read_options, Capability.MERGE)
    if streams := [each for each in sources if each.holds_streams]:
        if len(streams) < len(sources):
            raise UsageError("nodes of NATS Streaming and of nats-server are not merged", "name those of one cluster")
        return salvage_streams(sources, None if dry_run else out, options.patterns, stream_options, force=force)
    nodes = [node for source in sources for node in source.parts()]
    check_stopped(sources, force=force or dry_run)
    with ByteProgress("plan") as shown:
        plan = plan_merge(nodes, read_options, options, progress=shown.advance)
    return carry_out(plan, None if dry_run else out, merge_report)
