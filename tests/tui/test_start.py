"""Starting the browser: in a real terminal, and where it cannot be started."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.waiting import is_readable

_PROGRAM = [sys.executable, "-m", "stantools", "tui"]


class Terminal:
    """The browser in a terminal of its own."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        main, other = pty.openpty()
        self._main = main
        self.process = subprocess.Popen(
            [*_PROGRAM, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **(env or {})},
            # A group of its own in our session: the system stops no group that nobody could continue.
            process_group=0,
        )
        os.close(other)
        self.seen = b""

    def until(self, text: bytes, seconds: float = 60) -> None:
        """Waits until a text was drawn."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen[-3000:].decode("utf-8", "replace")
            if is_readable(self._main, 0.2):
                try:
                    self.seen += os.read(self._main, 1 << 16)
                except OSError:
                    assert text in self.seen, self.seen[-3000:].decode("utf-8", "replace")

    def press(self, keys: bytes) -> None:
        """Presses keys; what was drawn before is forgotten."""
        self.seen = b""
        os.write(self._main, keys)

    def wait(self, seconds: float = 30) -> int:
        """Waits for the end and returns the exit code; reads on, or the program could not write its last words."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            if is_readable(self._main, 0.1):
                try:
                    self.seen += os.read(self._main, 1 << 16)
                except OSError:
                    break
        return self.process.wait(10)

    def close(self) -> None:
        """Ends it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    running: list[Terminal] = []
    yield running
    for terminal in running:
        terminal.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_sample(tmp_path / "datastore", SampleOptions(channels=2, messages=20))
    return tmp_path


def test_in_a_terminal(place: Path, terminals: list[Terminal]) -> None:
    """Help, suspended and continued, and left with the key of the settings from where the desktop has them."""
    (place / "config" / "stantools").mkdir(parents=True)
    (place / "config" / "stantools" / "tui.toml").write_text('[keys]\napp.quit = "x"\n')
    terminal = Terminal("datastore", cwd=place, env={"XDG_CONFIG_HOME": str(place / "config")})
    terminals.append(terminal)
    terminal.until(b"READ ONLY")
    terminal.until("✓ clean".encode())
    terminal.press(b"?")
    terminal.until(b"active keys")
    terminal.press(b"\x1b")
    time.sleep(0.3)
    terminal.press(b"\x1a")
    terminal.until(b"\x1b[?1049l")
    status = Path(f"/proc/{terminal.process.pid}/stat")
    if status.exists():
        end = time.monotonic() + 20
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "it was not stopped"
            time.sleep(0.05)
    terminal.seen = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(b"READ ONLY")
    terminal.press(b"x")
    assert terminal.wait() == 0
    assert b"Traceback" not in terminal.seen
    # The alternate screen is left and the cursor is there again.
    assert b"\x1b[?1049l" in terminal.seen
    assert b"\x1b[?25h" in terminal.seen


def test_ended_by_a_signal_it_leaves_a_usable_terminal(place: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal("datastore", cwd=place)
    terminals.append(terminal)
    terminal.until("✓ clean".encode())
    terminal.seen = b""
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() in (0, 130)
    assert b"Traceback" not in terminal.seen
    assert b"\x1b[?1049l" in terminal.seen


def _plain(*arguments: str, cwd: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments] if code else [*_PROGRAM, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


def test_without_a_terminal_it_says_what_to_use_instead(place: Path) -> None:
    result = _plain("datastore", cwd=place)
    assert result.returncode == 2
    assert "needs a terminal" in result.stderr
    assert "stantools info" in result.stderr
    assert result.stdout == ""


def test_nothing_to_look_at(tmp_path: Path) -> None:
    result = _plain(cwd=tmp_path)
    assert result.returncode == 2
    assert "no STORE and no server was given" in result.stderr


def test_what_is_no_store(place: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal("nowhere", cwd=place)
    terminals.append(terminal)
    assert terminal.wait() == 3
    assert b"nowhere" in terminal.seen
    assert b"Traceback" not in terminal.seen
    assert b"\x1b[?1049h" not in terminal.seen


def test_without_the_library_it_names_the_extra(place: Path) -> None:
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "textual":
            raise ImportError("No module named 'textual'")
sys.meta_path.insert(0, Gone())
sys.stdin.isatty = sys.stdout.isatty = lambda: True
sys.argv = ["stantools", "tui", "datastore"]
from stantools.cli.main import main
main()
"""
    result = _plain(cwd=place, code=code)
    assert result.returncode == 2
    assert "pip install 'textual<9,>=8'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_mistake_of_ours_ends_without_a_traceback(place: Path, terminals: list[Terminal]) -> None:
    (place / "sitecustomize.py").write_text(
        "import tui.screens.overview as o\n"
        "def broken(self, text): raise RuntimeError('so it is')\n"
        "o.OverviewScreen.action_findings = lambda self: broken(self, '')\n"
    )
    terminal = Terminal("datastore", cwd=place, env={"PYTHONPATH": str(place)})
    terminals.append(terminal)
    terminal.until("✓ clean".encode())
    terminal.press(b"f")
    assert terminal.wait() == 3
    assert b"so it is" in terminal.seen
    assert b"please report it" in terminal.seen
    assert b"Traceback" not in terminal.seen


@pytest.mark.golden
def test_a_node_whose_directories_lie_apart(tmp_path: Path, golden_clusters: Path, terminals: list[Terminal]) -> None:
    node = golden_clusters / "snapshots" / "nodes" / "a"
    terminal = Terminal("--node", f"somewhere:data={node / 'data'},raft={node / 'raft'}", cwd=tmp_path)
    terminals.append(terminal)
    terminal.until(b"late.channel")
    terminal.press(b"q")
    assert terminal.wait() == 0


_FIRST_PICTURE = """
import sys
from pathlib import Path
from tui.app import Browser
from tui.opening import open_session
from tui.store_session import StoreSession

def start(session):  # is called after the first picture
    print(*sorted(each for each in ("numpy", "stantools.inspection.forecast") if each in sys.modules))
    browser.exit()

StoreSession.start = start
browser = Browser(open_session(Path("datastore")))
browser.run(headless=True)
"""


def test_the_first_picture_waits_for_no_library_that_only_scans_need(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_PICTURE], cwd=place, capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr
