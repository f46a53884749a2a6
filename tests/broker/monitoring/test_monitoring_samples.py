"""The samples for Prometheus, Grafana and Kubernetes: they load, and name what the broker has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from broker.config.broker_options import Parsed
from broker.config.reader import parse
from tests.broker.monitoring.standins import Streaming, get, monitoring

SAMPLES = Path(__file__).parents[3] / "samples"
#: Labels that Prometheus adds.
OF_PROMETHEUS = {"instance", "job"}
_NAME = re.compile(r"\b(?:stan|nats)_[a-z_]+\b")
_SELECTOR = re.compile(r"\b((?:stan|nats)_[a-z_]+)\{([^}]*)\}")
_BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((SAMPLES / "monitoring" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((SAMPLES / "monitoring" / "grafana-dashboard.json").read_text())
    return board


def targets() -> Iterator[tuple[str, str]]:
    """Expressions and legends of all panels."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def expressions() -> list[str]:
    variables = [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return [*(rule["expr"] for rule in rules()), *(expr for expr, _ in targets()), *variables]


@pytest.fixture
async def exported() -> dict[str, set[str]]:
    """The names that a broker exports, with their labels; `role` is that of a server of a group."""
    streaming = Streaming()
    streaming.documents["serverz"] |= {"role": "Leader", "node_id": "a"}
    async with monitoring(streaming) as server:
        got = await get(server.port, "/metrics")
    samples = [sample for family in text_string_to_metric_families(got.body.decode()) for sample in family.samples]
    found: dict[str, set[str]] = {}
    for sample in samples:
        found.setdefault(sample.name, set(OF_PROMETHEUS)).update(sample.labels)
    return found


async def test_every_metric_and_label_is_exported(exported: dict[str, set[str]]) -> None:
    named = {name for each in expressions() for name in _NAME.findall(each)}
    assert named - set(exported) == set()
    assert {"stan_server_info", "stan_subscription_lag_messages", "stan_subscription_members"} <= named
    for each in expressions():
        labels = OF_PROMETHEUS.union(*(exported[name] for name in _NAME.findall(each)))
        for name, selector in _SELECTOR.findall(each):
            chosen = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert chosen <= exported[name], each
        for grouped in _BY.findall(each):
            assert {label.strip() for label in grouped.split(",")} <= labels, each
        assert [each.count(mark) for mark in "({["] == [each.count(mark) for mark in ")}]"], each


async def test_servers_of_a_group_have_one_cluster_id() -> None:
    """By which the alerts count them; a document of a server on standby has none."""
    streaming = Streaming()
    streaming.documents["serverz"] |= {"state": "FT_STANDBY", "cluster_id": ""}
    async with monitoring(streaming) as server:
        assert b'stan_server_info{cluster_id="test-cluster",' in (await get(server.port, "/metrics")).body


async def test_texts_name_labels_of_their_metrics(exported: dict[str, set[str]]) -> None:
    texts = [*targets(), *((rule["expr"], json.dumps(rule["annotations"])) for rule in rules())]
    for expression, text in texts:
        grouped = _BY.findall(expression.partition(" unless ")[0])
        labels = OF_PROMETHEUS.union(*(exported[name] for name in _NAME.findall(expression)))
        if expression.startswith("count by"):
            labels = {label.strip() for each in grouped for label in each.split(",")}
        used = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}", text))
        assert used <= labels, (expression, text)


def test_expressions_are_promql() -> None:
    for expression in expressions():
        # Grafana puts its variables in before Prometheus reads an expression; label_values() is Grafana's own.
        written = expression.replace("$__rate_interval", "5m")
        if not written.startswith("label_values("):
            promql_parser.parse(written)
    with pytest.raises(ValueError):
        promql_parser.parse("rate(stan_messages_total) by (channel")


def test_alerts_have_a_severity_and_a_sentence() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
    # What docs/high-availability.md says to watch, as far as it is a metric.
    everything = " ".join(rule["expr"] for rule in rules())
    for state in ('state="FT_ACTIVE"', 'state="FT_STANDBY"', 'role="Leader"', "up{"):
        assert state in everything


def test_panels_do_not_overlap_and_have_their_data_source() -> None:
    board = dashboard()
    places: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    variables = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\b(?!__)", json.dumps(board))) - {"__rate_interval"}
    assert used <= variables


def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all((SAMPLES / "deployment" / "kubernetes.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


async def test_kubernetes_starts_a_broker_and_probes_what_it_serves(tmp_path: Path) -> None:
    found = kubernetes()
    stateful = found["StatefulSet", "stan-broker"]["spec"]
    pod = stateful["template"]
    [container] = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert stateful["replicas"] == 1
    assert ("Service", stateful["serviceName"]) in found
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for service in (each["spec"] for (kind, _), each in found.items() if kind == "Service"):
        assert service["selector"] == labels
        assert all(each["targetPort"] in ports for each in service["ports"])

    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert set(mounts) == volumes

    # The configuration is one that the broker takes, with the ports and the directory of the pod.
    [(name, text)] = found["ConfigMap", "stan-broker"]["data"].items()
    assert container["args"] == ["-c", f"{mounts['config']}/{name}"]
    (tmp_path / name).write_text(text)
    parsed = parse(["-c", str(tmp_path / name)])
    assert isinstance(parsed, Parsed)
    assert parsed.monitoring.port == ports["monitoring"]
    assert parsed.nats.port == ports["client"]
    assert (parsed.store, parsed.directory) == ("FILE", mounts["data"])

    image = (SAMPLES / "deployment" / "Containerfile").read_text()
    assert f"--uid {pod['spec']['securityContext']['runAsUser']} " in image
    async with monitoring() as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert ports[asked["port"]] == ports["monitoring"]
            assert (await get(server.port, asked["path"])).status == 200
        annotations = found["Service", "stan-broker-monitoring"]["metadata"]["annotations"]
        assert (await get(server.port, annotations["prometheus.io/path"])).status == 200
