"""Records what happens in a terminal, from the real program, as SVG animations for the README and the guides.

    python docs/recordings.py [NAME...]            (or: make recordings)

Commands are typed and run in a terminal of fixed size, and what differs from run to run in their output is replaced as
`tour` does; the browser is driven as `screens` does. What is seen becomes frames, each for a time that does not depend
on the machine. CSS shows one frame after the other, without a script; where people want no motion, and where nothing
moves, the last one is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text
from screens import browsing, settle, shops
from tour import ROOT, run, steady

RECORDINGS = Path(__file__).parent / "recordings"
#: Columns and lines of the terminal.
SIZE = (96, 28)

# Frames as one animation


class Frame(NamedTuple):
    """What is seen for a time."""

    seconds: float
    svg: str  #: as rich exports it, and Textual with it


_RULE = re.compile(r"\.[\w-]+-(r\d+) \{([^}]*)\}")
#: Attributes of what rich draws that are the same everywhere, or not needed as nothing is wider than its cells.
_LEFT_OUT = ("clip-path", "shape-rendering")
_STYLE = """\
text{{font:20px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}}g rect{{shape-rendering:crispEdges}}
.title{{font-weight:bold;font-size:18px}}{rules}
@media (prefers-reduced-motion:no-preference){{[class^=s]{{animation:{seconds:g}s step-end infinite}}{names}}}
{keyframes}"""


def animated(frames: Sequence[Frame], label: str) -> str:
    """Draws frames as one SVG that shows them one after the other, again and again.

    What is the same in several frames is drawn once, and shown while they are.

    Args:
        frames: The frames, all of one size.
        label: What is seen, for people who do not see it.
    """
    classes: dict[str, str] = {}
    layers: list[dict[str, list[int]]] = [{}, {}, {}]  # what is drawn, and in which frames: title, cells, text
    for number, frame in enumerate(frames):
        for layer, element in _elements(frame.svg, classes):
            layers[layer].setdefault(element, []).append(number)
    shown = {tuple(numbers): "" for layer in layers for numbers in layer.values() if len(numbers) < len(frames)}
    shown |= {numbers: f"s{place}" for place, numbers in enumerate(shown)}
    starts = list(accumulate((frame.seconds for frame in frames), initial=0.0))
    style = _STYLE.format(
        seconds=starts[-1],
        rules="".join(f".{name}{{{css}}}" for css, name in classes.items())
        + "".join(f".{name}{{visibility:hidden}}" for numbers, name in shown.items() if numbers[-1] < len(frames) - 1),
        names="".join(f".{name}{{animation-name:{name}}}" for name in shown.values()),
        keyframes="\n".join(_keyframes(name, numbers, starts) for numbers, name in shown.items()),
    )
    window, _, lights, cells = list(ElementTree.fromstring(frames[-1].svg))[2:]
    title, rects, texts = ("".join(_grouped(layer, shown, len(frames))) for layer in layers)
    viewed = re.search('viewBox="[^"]*"', frames[-1].svg)
    assert viewed
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {viewed[0]} role="img" aria-label={quoteattr(label)}>\n'
        f"<title>{escape(label)}</title>\n<style>\n{style}\n</style>\n{_element(window)}\n"
        f'<g transform="{lights.get("transform")}">{"".join(map(_element, lights))}</g>\n'
        f'{title}\n<g transform="{cells.get("transform")}">\n{rects}\n{texts}\n</g>\n</svg>\n'
    )


def _elements(svg: str, classes: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Iterates over what a frame draws, with its layer; what looks the same in two frames is the same text."""
    style, _, _, title, _, cells = ElementTree.fromstring(svg)
    rules = dict(_RULE.findall(style.text or ""))
    yield 0, _element(title, **{"class": "title"})
    *rects, matrix = cells
    for rect in rects:
        yield 1, _element(rect)
    for text in (each for each in matrix if each.text and each.text.strip()):
        css = rules[text.get("class", "").rpartition("-")[2]].strip().rstrip(";")
        yield 2, _element(text, **{"class": classes.setdefault(css, f"c{len(classes)}")})


def _element(element: ElementTree.Element, **changed: str) -> str:
    given = {name: value for name, value in {**element.attrib, **changed}.items() if name not in _LEFT_OUT}
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in given.items())
    tag = element.tag.rpartition("}")[2]
    return f"<{tag}{attributes}>{escape(element.text)}</{tag}>" if element.text else f"<{tag}{attributes}/>"


def _grouped(layer: Mapping[str, list[int]], shown: Mapping[tuple[int, ...], str], frames: int) -> Iterator[str]:
    """Iterates over the elements of a layer, those that are shown together as one group."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for element, numbers in layer.items():
        groups.setdefault(tuple(numbers), []).append(element)
    for numbers, elements in groups.items():
        drawn = "".join(elements)
        yield drawn if len(numbers) == frames else f'<g class="{shown[numbers]}">{drawn}</g>'


def _keyframes(name: str, numbers: tuple[int, ...], starts: Sequence[float]) -> str:
    """Writes when something that is seen in some frames comes and goes."""
    stages = []
    for number, start in enumerate(starts[:-1]):
        if number == 0 or (number in numbers) != (number - 1 in numbers):
            seen = "visible" if number in numbers else "hidden"
            stages.append(f"{100 * start / starts[-1]:.5g}%{{visibility:{seen}}}")
    return f"@keyframes {name}{{{''.join(stages)}}}"


# A terminal

_PROGRAMS = {"stantools": "stantools", "stan-broker": "broker"}
#: The port in commands and in what is shown. What runs takes a free one.
_PORT = "4222"
_PROMPT = "\x1b[1;32m$\x1b[0m "
#: Characters that are typed at once, and the seconds until the next ones.
_TYPED, _TYPING = 2, 0.07
#: Seconds until a command answers; those that what it prints is seen for: for each line, at least and at most.
_WAIT, _LINE, _LEAST, _MOST = 0.7, 0.16, 1.5, 4.0
#: Seconds that the last frame is seen for in addition.
_END = 3.0
#: Seconds that a command may be silent for.
_PATIENCE = 60


class Terminal:
    """A terminal in which commands are typed; what it shows becomes frames.

    Args:
        place: The directory that commands run in.
    """

    def __init__(self, place: Path) -> None:
        self.frames: list[Frame] = []
        self._place = place
        self._shown = ""

    def run(self, command: str, until: str = "") -> None:
        """Types a command, runs it, and shows what it prints.

        Args:
            command: The command.
            until: What it prints last before it is stopped; "" if it ends by itself.
        """
        self._show(_PROMPT, _WAIT)
        for at in range(0, len(command), _TYPED):
            self._show(command[at : at + _TYPED], _TYPING)
        self._show("\n", _WAIT)
        lines = self._printed(command, until).splitlines(keepends=True)
        for at in range(0, len(lines), SIZE[1] - 4):  # every line is seen, however many there are
            page = lines[at : at + SIZE[1] - 4]
            self._show("".join(page), min(max(_LINE * len(page), _LEAST), _MOST))

    def _show(self, text: str, seconds: float) -> None:
        self._shown += text
        self.frames.append(Frame(seconds, _picture(self._shown)))

    def _printed(self, command: str, until: str) -> str:
        """Runs a command in a terminal; returns what it prints."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        program, *words = shlex.split(command.replace(_PORT, port))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(ours, SIZE[::-1])
        process = subprocess.Popen(
            [sys.executable, "-m", _PROGRAMS[program], *words],
            cwd=self._place,
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        printed, wanted = b"", re.compile(rb"(?s)(.*%b[^\n]*\n)" % until.encode())
        with contextlib.suppress(OSError):  # the terminal is closed
            while some := os.read(ours, 1 << 16) if select.select([ours], [], [], _PATIENCE)[0] else b"":
                printed += some
                if until and wanted.match(printed):
                    process.send_signal(signal.SIGINT)
                    break
        os.close(ours)
        try:
            process.wait(_PATIENCE)
        finally:
            process.kill()
        if until:
            (printed,) = wanted.findall(printed)
        # On a slow machine a bar shows progress for a moment, and is wiped out.
        output = re.sub(r"[^\n]*\r", "", printed.decode().replace("\r\n", "\n"))
        return steady(output.replace(port, _PORT))


def _picture(text: str) -> str:
    """Draws the end of a text as a terminal shows it, with the cursor behind it."""
    columns, lines = SIZE
    console = Console(
        width=columns,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    decoder, rows = AnsiDecoder(), []
    for line in map(decoder.decode_line, text.split("\n")):
        rows += line.divide(range(columns, len(line), columns))
    rows[-1].append(" ", "reverse")
    for row in (rows + [Text()] * lines)[max(len(rows) - lines, 0) :][:lines]:
        console.print(row, soft_wrap=True)
    return console.export_svg(title="stantools")


# What is recorded

_SAMPLE = "sample store --channels 2 --damage flipped-length --damage cut-subs"
_SALVAGE = "salvage store --out rescued"


class Session(NamedTuple):
    """Commands that are typed in a terminal."""

    label: str  #: what is seen
    commands: Sequence[str]  #: what is typed
    before: Callable[[Path], object]  #: lays out what they work on
    until: str = ""  #: what the last one prints before it is stopped; "" if it ends by itself


def _tour(*commands: str) -> Callable[[Path], object]:
    return lambda place: [run(command, place) for command in commands]


def _nodes(place: Path) -> None:
    """Lays out three nodes of a cluster, of which two have damaged messages."""
    said = subprocess.run(
        [sys.executable, ROOT / "tests" / "goldenstores.py"], stdout=subprocess.PIPE, text=True, check=True
    )
    for node in Path(said.stdout.strip(), "clusters", "damaged_slice", "nodes").iterdir():
        shutil.copytree(node, place / node.name)


def _streams(place: Path) -> None:
    """Lays out the directory of a nats-server that was killed, with a stream that a start would delete."""
    shutil.copytree(ROOT / "samples" / "streams-damaged", place / "data")


SESSIONS = {
    "recovery": Session(
        "Three commands in a terminal: doctor says what is wrong with a store and that the server does not start on "
        "it, salvage writes a new store with every message, and the broker starts on that",
        (
            "stantools doctor store",
            "stantools salvage store --out rescued",
            "stan-broker -st FILE -dir rescued -a 127.0.0.1 -p 4222",
        ),
        _tour(_SAMPLE),
        "Streaming Server is ready",
    ),
    "migration": Session(
        "Two commands in a terminal: migrate moves a store into a nats-server that it starts, and compares every "
        "message; migrate verify compares again",
        ("stantools migrate rescued --server embedded --yes", "stantools migrate verify shop-rescued.migration.yaml"),
        _tour(_SAMPLE, _SALVAGE),
    ),
    "cluster": Session(
        "Three commands in a terminal: forecast says which of three nodes would lead, merge leaves out what is damaged "
        "on two of them and makes one store with every message, doctor finds it healthy",
        ("stantools forecast a b c", "stantools merge a b c --out merged", "stantools doctor merged"),
        _nodes,
    ),
    "streams": Session(
        "Three commands in a terminal: doctor says that a start of nats-server would delete a JetStream stream, "
        "salvage writes a new directory with every intact message, forecast says that a start on that destroys nothing",
        (
            "stantools doctor data",
            "stantools salvage data --out new",
            "stantools forecast new --server-version 2.15",
        ),
        _streams,
    ),
}
_BROWSED = (
    "The browser on a damaged store: the overview, findings with their explanations, the bytes of a damaged record, "
    "messages, their timeline, and the plan of a salvage"
)
#: Keys that are pressed in the browser one after the other, what is said of them, and how long the result is seen.
_KEYS = (
    ("f", "f: findings", 2.5),
    ("down", "down: a finding", 2.0),
    ("enter", "enter: the bytes", 3.0),
    ("1", "1: overview", 1.5),
    ("enter", "enter: messages", 2.0),
    ("3", "3: timeline", 2.0),
    ("7", "7: plans", 1.5),
    ("enter", "enter: a salvage", 1.5),
    ("enter", "enter: what it would keep; nothing is written yet", 2.5),
)


def record(session: Session) -> str:
    """Runs the commands of a session and returns their recording."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "shop")  # in the names of plans
        place.mkdir()
        session.before(place)
        terminal = Terminal(place)
        *most, last = session.commands
        for command in most:
            terminal.run(command)
        terminal.run(last, session.until)
    return animated(_held(terminal.frames), session.label)


def record_browser() -> str:
    """Drives the browser and returns its recording."""

    async def drive(path: Path) -> list[Frame]:
        async with browsing(path) as pilot:
            frames = [Frame(3.0, pilot.app.export_screenshot(title=f"stantools tui {path}"))]
            for key, said, seconds in _KEYS:
                await pilot.press(key)
                await settle(pilot)
                frames.append(Frame(seconds, pilot.app.export_screenshot(title=said)))
            return frames

    with shops() as place:
        os.chdir(place / "damaged")
        return animated(_held(asyncio.run(drive(Path("datastore")))), _BROWSED)


def _held(frames: Sequence[Frame]) -> list[Frame]:
    return [*frames[:-1], frames[-1]._replace(seconds=frames[-1].seconds + _END)]


def main(names: Sequence[str]) -> None:
    """Writes the recordings with these names, or all."""
    made = {**{name: partial(record, each) for name, each in SESSIONS.items()}, "browser": record_browser}
    if unknown := [name for name in names if name not in made]:
        sys.exit(f"there is no recording {unknown[0]}; there are: {', '.join(made)}")
    RECORDINGS.mkdir(exist_ok=True)
    for name in names or made:
        svg = made[name]()
        (RECORDINGS / f"{name}.svg").write_text(svg, encoding="utf-8")
        sys.stderr.write(f"wrote {RECORDINGS.name}/{name}.svg, {len(svg) >> 10} KiB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
