"""The README is short, the console blocks of pages are real output, and what guides begin with can be run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests.cli.conftest import Run
from tests.conftest import others_slow
from tests.programs import load

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


@pytest.mark.parametrize("name", ["README.md", "docs/tour.md", "docs/jetstream-guide.md"])
def test_the_tour_shows_real_output(name: str) -> None:
    module = load(ROOT / "docs" / "tour.py")
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    assert page in module.PAGES
    assert text.count("```console\n$ stantools ") >= 2
    assert text == module.tour(page), "run: make docs"


def test_the_readme_is_short_and_leads_to_every_guide() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", text))
    assert linked >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}


def minute(page: str) -> list[str]:
    """The commands that a guide begins with."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("In one minute")[2]
    lines = re.match(r"[^\n]*\n(?:[^ \n][^\n]*\n)*\n((?:    [^\n]*\n)+)", text)
    assert lines, page
    return [line.partition(" #")[0].strip() for line in lines[1].splitlines()]


@pytest.mark.parametrize(
    ("page", "codes", "result"),
    others_slow(
        [
            # An exit code for each command; None for one that other tests run.
            ("recovery-guide.md", (0, 1, 0, 0), "NEW/stantools-salvage.json"),
            ("jetstream-guide.md", (0, 1, 5, 0), "NEW/jetstream"),
            ("clusters.md", (0, 0, None), "NEW/stantools-salvage.json"),
            ("pipeline-guide.md", (1, 1, 1, None), "messages/_stantools-export.json"),
        ],
        ["recovery-guide.md", "jetstream-guide.md"],
    ),
)
def test_the_minute_of_a_guide(
    page: str,
    codes: tuple[int | None, ...],
    result: str,
    run: Run,
    tmp_path: Path,
    golden_clusters: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_sample(tmp_path / "STORE", SampleOptions(channels=2, damage=("flipped-length",)))
    shutil.copytree(tmp_path / "STORE", tmp_path / "datastore")
    nodes = " ".join(str(golden_clusters / "snapshots" / "nodes" / name) for name in "abc")
    shutil.copytree(ROOT / "samples/streams-damaged", tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    commands = minute(page)
    assert len(commands) == len(codes)
    for command, code in zip(commands, codes, strict=True):
        if code is None:
            continue
        line = command.replace("NODE NODE NODE", nodes).replace("/some/other/disk", str(tmp_path))
        program, *words = line.split()
        if program == "stantools":
            done = run(*words)
            assert done.code == code, f"{command}: {done.out}{done.err}"
        else:
            assert subprocess.run([program, *words], check=False).returncode == code, command
    assert (tmp_path / result).exists()


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", text, re.MULTILINE), code


def test_makefile_targets_named_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").glob("*.md")):
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"
