"""Recordings of the terminal: frames become one animation, and what is recorded is what the program says now."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.text import Text

from tests.programs import load
from tests.test_docs import PAGES, check_command

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "docs" / "recordings"
KEPT = sorted(RECORDINGS.glob("*.svg"))
each_recording = pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return load(ROOT / "docs" / "recordings.py")


def frame(program: ModuleType, seconds: float, *lines: str | Text, title: str = "a title") -> object:
    console = Console(width=20, file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, highlight=False, markup=False)
    return program.Frame(seconds, console.export_svg(title=title))


def texts(svg: str) -> Counter[str]:
    """The pieces of text that an animation shows at any time."""
    return Counter(
        each.text.replace("\xa0", " ") for each in ElementTree.fromstring(svg).iter(f"{_SVG}text") if each.text
    )


def seen(svg: str, at: float) -> set[str]:
    """What an animation shows at a time, by its keyframes; at -1 what it shows where nothing moves."""
    root = ElementTree.fromstring(svg)
    style = root.findtext(f"{_SVG}style") or ""
    moving = style.partition("@media (prefers-reduced-motion:no-preference)")
    assert moving[1]
    hidden = set(re.findall(r"\.(s\d+)\{visibility:hidden\}", moving[0]))
    seconds = float(re.findall(r"animation:([\d.e+]+)s step-end infinite", style)[0])
    shown = set()
    for group in [root, *root.iter(f"{_SVG}g")]:
        name = group.get("class", "")
        if name and at >= 0:
            (frames,) = re.findall(rf"@keyframes {name}\{{(.*)\}}", style)
            stages = re.findall(r"([\d.e+-]+)%\{visibility:(\w+)\}", frames)
            assert float(stages[0][0]) == 0
            state = [state for share, state in stages if float(share) / 100 * seconds <= at][-1]
        else:
            state = "hidden" if name in hidden else "visible"
        if state == "visible":
            shown |= {(each.text or "").replace("\xa0", " ") for each in group.findall(f"{_SVG}text")}
    return shown


def test_frames_follow_each_other(program: ModuleType) -> None:
    frames = [
        frame(program, 1.0, "same", "one"),
        frame(program, 0.5, "same", Text('<two> & "three"', style="bold red")),
        frame(program, 2.5, "same", "one", title="another"),
    ]
    svg = program.animated(frames, 'what is <seen> & "said"')
    title, other = {"a title", "same"}, {"another", "same", "one"}
    assert seen(svg, 0.0) == seen(svg, 0.99) == title | {"one"}
    assert seen(svg, 1.01) == seen(svg, 1.49) == title | {'<two> & "three"'}
    assert seen(svg, 1.51) == seen(svg, 3.99) == seen(svg, -1) == other
    assert texts(svg) == Counter({"same": 1, "one": 1, '<two> & "three"': 1, "a title": 1, "another": 1})
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == root.findtext(f"{_SVG}title") == 'what is <seen> & "said"'
    assert "animation:4s" in svg and "font-weight: bold" in svg


def test_a_single_frame_does_not_move(program: ModuleType) -> None:
    svg = program.animated([frame(program, 1.0, "alone")], "alone")
    assert seen(svg, -1) == {"a title", "alone"}
    assert not list(ElementTree.fromstring(svg).iter(f"{_SVG}animate")) and "@keyframes" not in svg


def test_a_terminal_shows_what_commands_print(program: ModuleType, tmp_path: Path) -> None:
    terminal = program.Terminal(tmp_path)
    terminal.run("stantools explain index-missing --color always")
    last = program.animated(terminal.frames, "explained")
    assert "$" in {each.strip() for each in seen(last, -1)}
    assert any("index-missing" in each for each in seen(last, -1))
    assert max(each.seconds for each in terminal.frames) <= 4
    first = seen(last, 0)
    assert {each.strip() for each in first} == {"$", "stantools"}  # the prompt, and the title


@each_recording
def test_a_recording_stands_alone_and_names_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert len(text) < 400_000
    assert {each.tag.removeprefix(_SVG) for each in root.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "circle",
        "g",
        "text",
    }
    assert not [name for each in root.iter() for name in each.attrib if "href" in name or name.startswith("on")]
    assert not re.search(r"url\(|@import|@font-face", text)
    assert not re.search(r"/(?:tmp|home|root|work|var|Users)/", text)
    assert "prefers-reduced-motion:no-preference" in text
    assert len(re.findall("@keyframes", text)) > 5 and seen(text, -1)
    assert root.get("aria-label")


def test_pages_show_every_recording() -> None:
    shown = set()
    for page in PAGES:
        for label, target in re.findall(r"!\[([^\]]*)\]\(([^)]*recordings/[^)]*)\)", page.read_text(encoding="utf-8")):
            assert label and (page.parent / target).resolve() in KEPT, (page, target)
            shown.add((page.parent / target).resolve())
    assert shown == set(KEPT)


def test_commands_that_are_recorded_exist(program: ModuleType) -> None:
    assert {path.stem for path in KEPT} == {*program.SESSIONS, "browser"}
    for session in program.SESSIONS.values():
        for command in session.commands:
            check_command(command)


@pytest.mark.golden
@pytest.mark.parametrize(
    "name", ["recovery", *(pytest.param(each, marks=pytest.mark.slow) for each in ("migration", "cluster", "streams"))]
)
def test_a_recording_shows_what_commands_print_now(program: ModuleType, name: str) -> None:
    if name == "migration" and not load(ROOT / "docs" / "tour.py").can_serve():
        pytest.skip("there is no nats-server to start")
    now = texts(program.record(program.SESSIONS[name]))
    assert now == texts((RECORDINGS / f"{name}.svg").read_text(encoding="utf-8")), "run: make recordings"
