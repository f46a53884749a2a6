"""`stantools explain` knows every error and warning that the broker prints: the texts are found in its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stantools.inspection.explain import explain
from tests.syntax import syntax_tree

BROKER = Path(__file__).parents[2] / "broker"
#: What conversions in a text become; the rest of a line says more, or nothing that can be known here.
SAMPLES = {"s": "something", "r": "'something'", "d": "5", "f": "5.0", "i": "5", "%": "%"}
#: Calls whose whole text comes from elsewhere, by file: as many as there are. A line of each is below.
INDIRECT = {
    "config/logs.py": 1,
    "process.py": 7,
    "stores/file/file_messages.py": 1,
    "stores/memory.py": 1,
    "stores/streams/metafiles.py": 2,
    "stores/streams/recovery.py": 6,
    "streaming/commits.py": 1,
    "streaming/faulttolerance.py": 1,
}
LINES = (
    "error opening file: open /x/log: permission denied",
    "STREAM: Reload: not available yet: a.conf:1:0: gateway",
    's.conf:1:12: "stoer" has no effect: did you mean "store"?',
    "s.conf:1:0: max_closed_clients has no effect in this server",
    "Peer name contains ',' make sure you provided an array of peer names, not a string with commas: taken for 2 peers",
    "JetStream has no store_dir: streams are in the temporary directory /tmp/nats",
    "JetStream is not clustered: consumers deliver to clients of this server, and not over routes",
    "STREAM: Failed to start: /tmp/nats is no directory, but a link or a file that somebody else may have made",
    "STREAM: ft: this server's embedded NATS server is linked to no other",
    "STREAM: cluster: log_path: no effect; elections and replication are those of JetStream, in the NATS servers",
    "STREAM: panic: Unable to sync: input/output error",
)


def calls() -> Iterator[tuple[str, int, str | None]]:
    """Errors, warnings and fatal lines: where they are in the source, and their text if it is written there."""
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(syntax_tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("error", "warning", "critical", "exception")
                and re.search(r"\b(NATS|STREAMING)$", ast.unparse(node.func.value))
            ):
                first = node.args[0] if node.args else None
                text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
                yield path.relative_to(BROKER).as_posix(), node.lineno, None if text == "%s" else text


def sample(text: str) -> str:
    return re.sub(r"%[-+ #0-9.]*([a-zA-Z%])", lambda found: SAMPLES[found[1]], text)


def is_known(text: str) -> bool:
    found = explain(sample(text))
    if text.lstrip().startswith(("%s: %s", "%s - %s")):
        # Client or file in front, and the reason is all there is.
        found = found or explain(sample(text).replace("something", "127.0.0.1:5 - cid:5 - ", 1))
    return bool(found) and all(each.meaning for each in found)


def test_every_text_of_the_broker_is_known() -> None:
    texts = {text for _, _, text in calls() if text}
    assert len(texts) > 120
    assert sorted(text for text in texts if not is_known(text)) == []


def test_texts_from_elsewhere_are_known() -> None:
    for line in LINES:
        assert explain(f"[7] 2026/11/21 03:00:00.123456 [WRN] {line}"), line


def test_reasons_of_starts_that_fail_have_a_remedy_of_their_own() -> None:
    guide = (BROKER.parent / "docs" / "high-availability.md").read_text()
    table = re.search(r"\| problem \| line of the log \| remedy \|\n(?:\|.*\n)+", guide)
    assert table
    reasons = [text for row in table[0].splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[2])]
    assert len(reasons) > 12
    reasons += [
        "discovered another streaming server with cluster ID",
        "unable to create the root directory [store]: mkdir store: not a directory",
        "unsupported store type: FLIE",
        'sql: unknown driver "" (forgotten import?)',
    ]
    found = {each: explain(f"[7] 2026/11/21 03:00:00.123456 [FTL] STREAM: Failed to start: {each}") for each in reasons}
    general = "the server did not start, for the reason in the line."
    assert [each for each, said in found.items() if not said or said[-1].meaning == general] == []
    taken = 'Error listening on port: 0.0.0.0:4222, "listen tcp 0.0.0.0:4222: bind: address already in use"'
    assert "another port" in explain(taken)[0].remedy


def test_calls_with_a_text_from_elsewhere_are_listed() -> None:
    found: dict[str, int] = {}
    for path, _, text in calls():
        if text is None:
            found[path] = found.get(path, 0) + 1
    assert found == INDIRECT
