"""What the pages say is what the code does: findings, commands, options, links, bytes, error texts."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
import numpy as np
import pytest
from click.testing import CliRunner

from broker.config.catalogue import FLAGS
from stantools.cli.main import cli
from stantools.cli.verbs import ALIASES, module_of, summaries
from stantools.format import envelope, kernels
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, Cipher, channel_key, master_key
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.jetstreamlog import STREAM_LINES, STREAM_WRAPPERS
from stantools.inspection.outcomes import UnknownRange
from stantools.inspection.records import FileKind, read_records
from stantools.inspection.serverlog import LINES, WRAPPERS
from stantools.inspection.start_verdict import StartFlaw, StartFlawKind
from stantools.migration.followed_store import Cutover
from stantools.migration.migration_report import cutover_json
from stantools.recovery.compact.plan import ACCEPTABLE, HARMLESS
from stantools.store.serverinfo import encode_server_file, new_server_info
from stantools.store.sublog import read_subs
from stantools.streamfiles.flaws import FlawKind
from tests import clients, servers
from tests.conftest import MUTATION_SETS, golden_cases, load_expected
from tests.programs import load
from tests.syntax import syntax_tree

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "samples").glob("**/*.md"))]


# Findings


class _Codes:
    """Finds the codes that a module makes findings of: the first arguments of `finding` and `Finding`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = syntax_tree(path)
        self.functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]

    def made(self) -> Iterator[str]:
        for function in self.functions:
            for call in self.calls(function, {"finding", "Finding"}):
                yield from self.values(call.args[0], function)

    @staticmethod
    def calls(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield node

    def values(self, node: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
        """Every text that an expression can be: constants, tables of the module, assignments, arguments of callers."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.IfExp):
            yield from self.values(node.body, function)
            yield from self.values(node.orelse, function)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            yield from self.table(node.value.id)
        elif ast.unparse(node) == "flaw.kind.value":
            yield from self.kinds_of_flaws()
        elif isinstance(node, ast.Name):
            sources = [*self.assigned(node.id, function), *self.passed(node.id, function)]
            assert sources, f"{self.path}:{node.lineno}: where does {node.id} come from?"
            for value, place in sources:
                yield from self.values(value, place)
        else:
            raise AssertionError(f"{self.path}:{node.lineno}: which code is {ast.unparse(node)}?")

    def table(self, name: str) -> Iterator[str]:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                assert isinstance(node.value, ast.Dict)
                yield from (ast.literal_eval(value) for value in node.value.values)

    @staticmethod
    def kinds_of_flaws() -> Iterator[str]:
        """The codes of the flaws that are made in a stream's directory."""
        for path in (ROOT / "stantools/streamfiles").glob("*.py"):
            for node in ast.walk(syntax_tree(path)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "FlawKind":
                    yield FlawKind[node.attr].value

    @staticmethod
    def assigned(name: str, function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.FunctionDef]]:
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                target = node.targets[0]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                else:
                    pairs = [(target, node.value)]
                yield from ((value, function) for one, value in pairs if ast.unparse(one) == name)

    def passed(self, name: str, function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.FunctionDef]]:
        names = [argument.arg for argument in function.args.args]
        if name in names:
            for caller in self.functions:
                for call in self.calls(caller, {function.name}):
                    yield call.args[names.index(name)], caller


def test_the_code_makes_exactly_the_findings_of_the_catalogue() -> None:
    made = set()
    for path in (ROOT / "stantools").rglob("*.py"):
        if path.parent.name != "catalogue" and re.search(r"[fF]inding\s*\(", path.read_text(encoding="utf-8")):
            made |= set(_Codes(path).made())
    assert made == set(CATALOGUE)


def test_codes_named_elsewhere_exist() -> None:
    assert set(CATALOGUE) >= HARMLESS | ACCEPTABLE
    for line in (*WRAPPERS, *LINES):
        assert set(line.codes) <= set(CATALOGUE)


def test_entries_are_written_alike() -> None:
    for code, entry in CATALOGUE.items():
        for text in (entry.meaning, entry.cause, entry.server, entry.remedy):
            assert text and text == text.strip() and not text.endswith("."), (code, text)
            assert text[0].islower() or text[0] in "-.`", (code, text)
            assert text.count("`") % 2 == 0, (code, text)


# Generated pages


@cache
def generator() -> ModuleType:
    return load(DOCS / "generate.py")


@pytest.mark.parametrize("name", ["findings.md", "commands.md", "broker-options.md"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generator().PAGES[name](), "run: make docs"


# Links, commands, options


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in prose(page) if line.startswith("#")}


def prose(page: Path) -> Iterator[str]:
    """The lines of a page that are not in fenced blocks."""
    fenced = False
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(page))):
            if target.startswith(("https://", "http://", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), (page, target)
            assert not anchor or anchor in anchors(other), (page, target)


def code(page: Path) -> Iterator[str]:
    """Everything that is set as code: blocks line by line, and spans."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^ *```.*?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        yield from block.split("\n")
    outside = "\n".join(prose(page))
    yield from (line.strip() for line in outside.split("\n") if line.startswith("    "))
    for span in re.findall(r"`([^`]+)`", outside):
        yield " ".join(span.split())


@cache
def commands(verb: str) -> dict[str, click.Command]:
    """The commands of a verb: by stage or job, "" for what it does without one."""
    command: click.Command = importlib.import_module(module_of(verb)).command
    if not isinstance(command, click.Group):
        return {"": command}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    named = {"" if each.hidden else name: each for name, each in found.items() if each}
    return {"": command, **named}


@cache
def broker_options() -> set[str]:
    """The options of the broker, with one dash and with two."""
    return {dashes + name for name in FLAGS for dashes in ("-", "--")}


@cache
def options(verb: str, stage: str = "") -> set[str]:
    if verb == "broker":
        return broker_options()
    # a job is the verb of its name
    params = (commands(stage)[""] if verb == "pipeline" and stage else commands(verb)[stage]).params
    names = {name for parameter in params for name in (*parameter.opts, *parameter.secondary_opts)}
    return names | {"-h", "--help"}


def check_command(text: str) -> None:
    for verb, rest in re.findall(r"(?:^|[\s/$|;&-])stantools ([a-z][a-z-]+)\b([^|;`]*)", text):
        verb = ALIASES.get(verb, verb)
        assert verb in summaries(), text
        first = rest.split()[0] if rest.split() else ""
        known = options(verb, first if first in commands(verb) else "")
        for option in re.findall(r"(?<!\S)(--?[A-Za-z][\w-]*)", rest.split("#")[0].split(" -- ")[0]):
            assert option in known, text
    for rest in re.findall(r"(?:^|[\s/$])stan-broker ([^|;`]*)", text):
        for option in re.findall(r"(?<!\S)(--?[A-Za-z]\w*)", rest.split("#")[0]):
            assert option in broker_options(), text


def test_commands_and_files_exist_with_their_options() -> None:
    known = set.union(*(options(verb, stage) for verb in summaries() for stage in commands(verb)), {"--version"})
    known |= broker_options()
    file = re.compile(r"(?:stantools|broker|tests|benchmarks|docs|samples)/[\w./*]+")
    for page in PAGES:
        for text in code(page):
            check_command(text)
            if re.match("--[a-z]", text):
                assert re.split("[ =]", text)[0] in known, (page, text)
            if file.fullmatch(text) and "NAME" not in text:
                assert list(ROOT.glob(text.rstrip("/"))), (page, text)


def test_modules_and_classes_of_the_architecture_exist() -> None:
    """Paths may begin at any package; a dotted name may end with names that its module defines."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    own = {
        path.relative_to(ROOT).as_posix(): path
        for package in ("stantools", "broker", "tui")
        for path in (ROOT / package).rglob("*.py")
    }
    folders = ("stantools", "broker", "tui", "tests", "benchmarks", "docs", "samples")
    files = {path.relative_to(ROOT).as_posix() for name in folders for path in (ROOT / name).rglob("*.py*")}
    files |= {"kernelbuild.py", "setup.py"}
    defined_class = re.compile(r"^ *class (\w+)", re.MULTILINE)
    classes = {name for path in own.values() for name in defined_class.findall(path.read_text(encoding="utf-8"))}
    found_files = set(re.findall(r"[\w./]+\.pyx?\b", text))
    found_names = set(re.findall(r"\b(?:stantools|broker|tui)(?:\.[a-z]\w*)+", text))
    found_classes = set(re.findall(r"`((?:[A-Z]+[a-z]+){2,})\b", text))
    assert len(found_files) > 60 and len(found_names) > 30 and len(found_classes) > 10
    wrong = {name for name in found_files if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    wrong |= found_classes - classes - {"KeyboardInterrupt"}
    for name in found_names:
        module = name.replace(".", "/")
        parent, _, member = module.rpartition("/")
        body = syntax_tree(own[f"{parent}.py"]).body if f"{parent}.py" in own else ()
        defined = {getattr(node, "name", "") for node in body}
        if not ((ROOT / module).is_dir() or f"{module}.py" in files or member in defined):
            wrong.add(name)
    assert not wrong


def test_commands_in_explanations_exist() -> None:
    for line in (*WRAPPERS, *LINES, *STREAM_WRAPPERS, *STREAM_LINES):
        for part in re.split(r"[;,:](?: |$)", f"{line.meaning}; {line.remedy}"):
            check_command(part)


# The reference

REFERENCE = DOCS / "reference"


def sections(page: Path) -> set[str]:
    """Numbers of the sections of a page, and of the numbered items in them: 7, 7.2, 8.1.6, W17."""
    found: set[str] = set()
    heading = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if named := re.match(r"#+ (?:Appendix )?([A-Z]|[A-Z]?[.]?\d+(?:\.\d+)*)[. ]", line):
            heading = named[1]
            found.add(heading)
        elif item := re.match(r"(\d+)\. ", line):
            found.add(f"{heading}.{item[1]}")
        found |= set(re.findall(r"^\| (W\d+) \|", line))
    return found


def citations() -> Iterator[tuple[Path, str, str]]:
    """Every citation in comments, docstrings and pages: where it is, the page, the section or weakness."""
    numbers = r"(\d+(?:\.\d+)*(?:(?:, | and | to |-)\d+(?:\.\d+)*)*)"
    for folder in ("stantools", "broker", "tui", "tests", "samples", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".pyx", ".pxd", ".proto", ".md") or not path.is_file():
                continue
            text = re.sub(r"\n[ #/:]*", " ", path.read_text(encoding="utf-8"))
            for page, several in re.findall(rf"\b([a-z-]+)\.md[])a-z./-]*,? sections? {numbers}", text):
                for number in re.findall(r"[\d.]*\d", several):
                    yield path, page, number
            if path.suffix != ".md":
                for several in re.findall(r"\bweakness(?:es)? ((?:W\d+(?:, | and | to )?)+)", text):
                    for number in re.findall(r"W\d+", several):
                        yield path, "filestore", number


def test_what_is_cited_is_in_the_reference() -> None:
    known = {page.stem: sections(page) for page in REFERENCE.glob("*.md")}
    found = list(citations())
    assert len(found) > 350
    wrong = [
        f"{path.relative_to(ROOT)}: {page}.md {number}" for path, page, number in found if number not in known[page]
    ]
    assert not wrong


def test_citations_name_their_page() -> None:
    bare = re.compile(r"(?<!\.md )(?<!\.md, )\bsections? \d")
    for folder in ("stantools", "broker", "tui"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = re.sub(r"\n[ #:]*", " ", path.read_text(encoding="utf-8"))
            assert not bare.search(text), path


STATES = {"healthy", "flawed", "damaged"}


def test_json_is_as_described(golden: Path, golden_jetstream: Path, tmp_path: Path) -> None:
    text = (REFERENCE / "json.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    store = str(golden / "durables" / "datastore")
    damaged = str(golden / "dmg_middle_slice_missing" / "datastore")

    def named(verb: str) -> set[str]:
        return set(re.findall(r"`([a-z_]+)`", parts[verb]))

    def printed(*words: str) -> Any:
        result = CliRunner().invoke(cli, words)
        return json.loads(result.stdout.splitlines()[0] if "ndjson" in words else result.stdout)

    info = printed("info", store, "-o", "json")
    channel = next(each for each in info["channels"] if each["subscriptions"])
    node = printed("info", str(golden.with_name("clusters") / "snapshots" / "nodes" / "a"), "-o", "json")["node"]
    streams = printed("info", str(golden_jetstream / "ok_accounts15" / "store"), "-o", "json")
    stream = next(each for each in streams["streams"] if each["consumers"])
    checked = printed("verify", str(golden_jetstream / "dmg_two_flips" / "store"), "-o", "json")
    consumers = printed("subs", str(golden_jetstream / "ok_accounts15" / "store"), "-o", "json")["streams"]
    salvaged = printed("salvage", str(golden_jetstream / "ok_accounts15" / "store"), "--dry-run", "-o", "json")
    lost = golden.with_name("clusters") / "lost_store_snapshot" / "nodes"
    cluster = printed("forecast", *(str(lost / each) for each in "abc"), "-o", "json")
    forgets = next(each["forgets"][0] for each in cluster["outcomes"] if each["forgets"])
    merge = printed("merge", *(str(lost / each) for each in "abc"), "--out", str(tmp_path / "new"), "-o", "json")
    to = ("--out", str(tmp_path / "backups"), "--plan", str(tmp_path / "plan.yaml"), "--yes")
    planned = printed("migrate", store, damaged, *to[:2], "--dry-run", "-o", "json")
    plan = planned["stores"][0]
    migrate = printed("migrate", store, *to, "-o", "json")
    ended = cutover_json(Cutover(cast(Any, None), [], 0.0, "", 0.0))
    diff = printed("diff", store, damaged, "-o", "json")
    verify = printed("verify", damaged, "-o", "json")
    doctor = printed("report", damaged, "--html", str(tmp_path / "page.html"), "-o", "json")
    forecast = printed("forecast", damaged, "-o", "json")
    start = printed(
        "forecast", str(golden_jetstream / "ok_accounts15" / "store"), "--server-version", "2.15", "-o", "json"
    )
    started = next(each for each in start["streams"].values() if each["consumers"])
    looked = printed("doctor", str(golden_jetstream / "ok_accounts15" / "store"), "-o", "json")
    nodes = printed(
        "forecast", str(golden_jetstream / "cl_meta_old" / "store"), "--server-version", "2.15", "-o", "json"
    )
    mended = printed("repair", str(golden_jetstream / "dmg_meta_sum_flip" / "store"), "--dry-run", "-o", "json")
    said = {
        "nodes of JetStream": {
            *nodes,
            *nodes["nodes"]["n1"]["orphans"][0],
            "orphans",
            *("jetstream", "versions"),
        },
        "repair": {*mended, *mended["steps"][0], *mended["before"][0], *("repair", "jetstream", "write", "move")},
        "info": {*info, *info["clients"][0], *channel},
        "jetstream": {
            *streams,
            *stream,
            *stream["blocks"][0],
            *stream["consumers"][0],
            *stream["consumers"][0]["delivered"],
            *checked,
            *checked["findings"][0],
            *checked["streams"][0],
            *next(each["consumers"][0] for each in consumers if each["consumers"]),
            *("info", "verify", "subs", "messages", "headers", "jetstream"),
        },
        "salvaged streams": {
            *salvaged,
            *salvaged["streams"][0],
            *salvaged["consumers"][0],
            *salvaged["consumers"][0]["delivered"],
            "info",
            "merge",
            "salvage",
        },
        "node": {
            *node,
            *node["members"][0],
            *node["snapshots"][0],
            "info",
            "clients",
            "subscriptions",
            "node",
            "verify",
        },
        "cluster": {*cluster, *cluster["nodes"][0], *cluster["outcomes"][0], *forgets, "forecast"},
        "verify": {*verify, *verify["findings"][0], *verify["channels"][0], "doctor"},
        "doctor": {
            *doctor,
            *doctor["findings"],
            *doctor["starts"][0],
            *doctor["next"],
            *doctor["messages"],
            *doctor["encryption"],
            *doctor["channels"]["alpha"],
            *UnknownRange(1, None, "", suspected=True).as_json(),
            "report",
            *STATES,
        },
        "forecast": {
            *forecast,
            *forecast["normal"],
            *forecast["normal"]["channels"]["alpha"],
            *StartFlaw(StartFlawKind.SKIPPED, "").as_json(),
            *start,
            *started,
            *next(each for each in started["consumers"].values()),
            *looked,
            *("doctor", "forecast", "versions", "jetstream", "size_before", "size_after"),
        },
        "merge": {
            *merge,
            *merge["nodes"][0],
            *merge["log"],
            *merge["channels"][0],
            "salvage",
            "seq",
            "why",
            "versions",
        },
        "migrate": {
            *({*migrate, *migrate["streams"][0], *ended, *ended["cutover"], "verify"}),
            *({*planned, *plan, *plan["streams"][0], *plan["left_out"][0], *plan["remarks"][0], "problem"}),
        },
        "diff": {*diff, "bytes", "seconds", "verify"},
        "messages": set(printed("messages", store, "events", "-o", "ndjson")),
    }
    for verb, members in said.items():
        assert members <= named(verb), verb
        assert named(verb) - members <= {"_", "pending", "status", "lag", "error", "warning", "info"}, verb


# The format page


def examples() -> dict[str, bytes]:
    """The files of the worked example, read from the page."""
    text = (DOCS / "file-format.md").read_text(encoding="utf-8")
    found = {}
    for size, name, block in re.findall(r"`[^`]+`, (\d+) bytes:\n\n```hex (\S+)\n(.*?)```", text, re.DOTALL):
        data = bytearray()
        for line in block.split("\n"):
            for token in line.split():
                if not re.fullmatch("[0-9a-f]{2}", token):
                    break
                data.append(int(token, 16))
        assert len(data) == int(size), name
        found[name] = bytes(data)
    return found


def test_the_example_is_read_without_complaint() -> None:
    kinds = {
        "server.dat": FileKind.SERVER,
        "clients.dat": FileKind.CLIENTS,
        "subs.dat": FileKind.SUBS,
        "msgs.1.dat": FileKind.MESSAGES,
        "msgs.1.idx": FileKind.INDEX,
    }
    files = examples()
    assert files.keys() == kinds.keys()
    for name, kind in kinds.items():
        records = list(read_records(memoryview(files[name]), kind, Crc()))
        assert all(record.ok for record in records), name
        assert sum(record.length for record in records) == len(files[name])


def test_the_example_is_what_we_would_write() -> None:
    crc, files = Crc(), examples()
    assert files["server.dat"] == encode_server_file(new_server_info("prod"), crc)
    time = 1700000000123456789
    sequences, times = np.array([1, 2], np.uint64), np.array([time, time + 1000], np.int64)
    data, sizes = kernels.encode_messages(b"orders", sequences, times, [b"re", b""], [b"hello", b""], crc)
    assert files["msgs.1.dat"] == b"\1\0\0\0" + data
    offsets = np.array([4, 43], np.int64)
    assert files["msgs.1.idx"] == b"\1\0\0\0" + kernels.encode_index(sequences, offsets, times, sizes, crc)
    # Without the last record, the Delete.
    state = read_subs(memoryview(files["subs.dat"])[:-10], crc).subscriptions[1]
    assert state.pending == {2}
    assert (state.state.durable_name, state.state.last_sent, state.state.is_closed) == (b"bill", 2, True)
    deleted = envelope.encode(pb.ClientDelete(id=b"app").SerializeToString(), crc, 2)
    assert files["clients.dat"].endswith(deleted)


def test_numbers_of_the_format_page() -> None:
    text = (DOCS / "file-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (0x[0-9A-F]{8}) \| (\d+) \| (0x[0-9A-F]{8}) \|", text)
    assert len(rows) == 3
    for polynomial, decimal, check in rows:
        assert int(polynomial, 16) == int(decimal)
        assert Crc(int(decimal))(b"123456789") == int(check, 16)
    assert master_key(b"secret").hex() in text
    assert channel_key(b"secret", b"foo").hex() in text
    for cipher in Cipher:
        encrypted = ChannelCipher(b"secret", b"foo", random=bytes(4)).encrypt(b"hello", cipher)
        assert f"`{encrypted.hex()}`" in text


# The recovery guide


def fatal_errors() -> set[str]:
    """Why real servers did not start, without what differs from store to store."""
    logs = []
    for case in (*golden_cases(), *MUTATION_SETS):
        expected = load_expected(case)
        outcomes = expected.get("outcomes", [expected.get(key, {}) for key in ("server_open", "server_open_truncate")])
        logs += [line for outcome in outcomes for line in outcome.get("log", ())]
    mark = "Failed to start: "
    return {line.partition(mark)[2] for line in logs if mark in line}


def test_the_guide_has_a_section_for_every_fatal_error(golden: Path) -> None:
    page = DOCS / "recovery-guide.md"
    headings = [line[4:] for line in prose(page) if line.startswith("### ")]
    text = " ".join(page.read_text(encoding="utf-8").split())
    errors = fatal_errors()
    assert len(errors) > 40
    for error in errors:
        heading = next((one for one in headings if error.startswith(one)), None)
        assert heading, error
        reason = re.sub(r'^ ?(?:"[^"]*"|\[[^\]]*\](?:\(file: "[^"]*"\))?): ', "", error[len(heading) :])
        if reason.startswith(("open ", "write ", "unable to repair ")):
            reason = reason.rpartition(": ")[2]
        words = re.split(r"[,:(\d]", reason)[0].strip()
        assert words in text, (error, words)


# Guides

#: Page -> the name under which readers look for it.
GUIDES = {
    "recovery-guide.md": "My server does not start",
    "migration-guide.md": "Leaving for JetStream",
    "without-downtime.md": "Without downtime",
    "clusters.md": "Clusters",
    "broker-guide.md": "Old clients, new engine",
    "high-availability.md": "High availability",
    "streams-guide.md": "Streams in the broker",
    "pipeline-guide.md": "Stores as tables",
    "tui-guide.md": "The browser",
}


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_begins_with_one_minute_and_ends_with_what_can_go_wrong(name: str) -> None:
    lines = (DOCS / name).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith(f"# {GUIDES[name]}")
    headings = [number for number, line in enumerate(lines) if line.startswith("## ")]
    assert any(line.startswith("In one minute") for line in lines[: headings[0]])
    assert lines[headings[-1]] == "## What can go wrong"
    assert len(lines) - headings[-1] > 4


# What is tested


def test_the_page_about_trust_counts_right(golden: Path, golden_clusters: Path) -> None:
    text = (DOCS / "trust.md").read_text(encoding="utf-8")
    assert f"{len(golden_cases())} stores, {sum(1 for _ in golden_clusters.iterdir())} clusters" in text
    assert f"{sum(len(load_expected(name)['mutations']) for name in MUTATION_SETS)} small damages" in text
    *most, newest = servers.VERSIONS
    assert f"nats-server {', '.join(most)} and {newest}" in text
    for package in (*clients.NODE_PACKAGES, clients.PYTHON_PACKAGES[0].replace("==", "@")):
        name, _, version = package.rpartition("@")
        assert re.search(rf"{re.escape(name)}`? {re.escape(version)}", text), package
    table = text.partition("## What it is tested against")[2].partition("\n## ")[0]
    commands = re.findall(r"\| `([^`|]+)`[^|]*\|$", table, re.MULTILINE)
    assert len(commands) > 10
    for path in (word for command in commands for word in command.split() if "/" in word):
        assert (ROOT / path).exists(), path
