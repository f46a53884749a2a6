"""Elections: who can lead, against who did when real clusters were started with the same directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.elections import ClusterForecast, forecast_cluster
from stantools.inspection.node import node_overview
from stantools.sources.nodes import find_node
from stantools.store.read_options import ReadOptions
from tests import goldenstores
from tests.conftest import KINDS_OF_CLUSTERS, others_slow

CLUSTERS = goldenstores.unpacked() / "clusters"
CASES = sorted(path.name for path in CLUSTERS.iterdir())

pytestmark = pytest.mark.golden


def forecast(case: Path) -> ClusterForecast:
    found = [find_node(each) for each in sorted((case / "nodes").iterdir())]
    return forecast_cluster([node_overview(node, ReadOptions()) for node in found if node])


@pytest.mark.parametrize("case", others_slow(CASES, KINDS_OF_CLUSTERS))
def test_the_real_leader_is_among_those_that_can_lead(case: str) -> None:
    restart: dict[str, Any] = json.loads((CLUSTERS / case / "expected.json").read_text())["restart"]
    said = forecast(CLUSTERS / case)
    leaders = {each.leader for each in said.outcomes}
    if restart["leader"]:
        assert restart["leader"] in leaders
    else:
        assert not leaders
    outcomes = restart["node_outcomes"]
    for node in (each for each in said.nodes if each.name in outcomes):  # a removed node was not started
        assert (not node.error) == bool(outcomes[node.name]["running"])
    # What the real cluster had lost then was said before.
    have = {each["name"]: each for each in (restart["recovered"] or {"channels": []})["channels"]}
    for outcome in said.outcomes:
        if outcome.leader == restart["leader"]:
            for lost in outcome.forgets:
                assert not have.get(lost.channel, {"subscriptions": []})["subscriptions"]
            assert bool(outcome.forgets) == (case in LOSES)


LOSES = {"all_stores_lost_snapshot", "free_pages", "lost_store_snapshot"}


def test_only_one_of_three_leaders_forgets() -> None:
    said = forecast(CLUSTERS / "lost_store_snapshot")
    assert set(said.voters) == {"a", "b", "c"}
    assert {each.leader: [lost.channel for lost in each.forgets] for each in said.outcomes if each.forgets} == {
        "b": ["events.eu", "orders"]
    }
    assert not said.harmless
    assert forecast(CLUSTERS / "snapshots").harmless


def test_without_a_majority_nobody_leads() -> None:
    node = find_node(CLUSTERS / "snapshots" / "nodes" / "a")
    assert node
    said = forecast_cluster([node_overview(node, ReadOptions())])
    assert (said.outcomes, said.majority, said.harmless) == ((), 2, False)
