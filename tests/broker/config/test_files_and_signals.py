"""Process id and ports files, `-sl`, reload, the catalogue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli import main
from broker.config import processes
from broker.config.broker_options import BrokerOptions
from broker.config.catalogue import SECTIONS
from broker.config.processes import PortsFile, send, write_pid_file
from broker.config.reader import parse
from broker.config.reload import ReloadProblem, ReloadResult, reload_options
from broker.config.values import ConfigurationError
from stantools.server_options import Support


def test_pid_file(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("0123456789")
    write_pid_file(str(path))
    assert path.read_text() == str(os.getpid())
    with pytest.raises(ConfigurationError) as caught:
        write_pid_file(str(tmp_path / "no" / "pid"))
    assert caught.value.message == f"Could not write pidfile: open {tmp_path}/no/pid: no such file or directory"


def test_ports_file(tmp_path: Path) -> None:
    file = PortsFile(str(tmp_path), ["nats://127.0.0.1:4222"])
    (path,) = tmp_path.iterdir()
    assert path.name == f"nats-streaming-server_{os.getpid()}.ports"
    assert path.read_text() == '{"nats":["nats://127.0.0.1:4222"]}'
    file.remove()
    assert not list(tmp_path.iterdir())
    file.remove()
    PortsFile(str(tmp_path / "no"), ["x"]).remove()
    with_monitoring = PortsFile(str(tmp_path), ["x"], ["y"])
    assert json.loads(with_monitoring.path.read_text()) == {"nats": ["x"], "monitoring": ["y"]}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_signals(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f"{sleeper.pid}\n")
    assert main(["-sl", f"term={tmp_path}/pid"]) == 0
    assert sleeper.wait(30) == -signal.SIGTERM


def test_signal_by_number(sleeper: subprocess.Popen[bytes]) -> None:
    send(f"stop={sleeper.pid}")
    assert sleeper.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("request_text", "said"),
    [
        ("foo", 'unknown signal "foo"'),
        ("foo=3", 'unknown signal "foo"'),
        ("stop=abc", "invalid pid: abc"),
        ("stop=0", "invalid pid: 0"),
        ("stop=-1", "invalid pid: -1"),
        ("stop=5=c", "invalid signal parameters: [c]"),
        ("stop=4194999", "no such process"),
        (f"stop={'9' * 18}", "no such process"),
    ],
)
def test_bad_signals(request_text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-sl", request_text]) == 1
    assert capsys.readouterr().err == f"{said}\n"


def test_looking_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(processes.os, "kill", lambda process, number: sent.append((process, number)))
    running: list[int] = []
    monkeypatch.setattr(processes, "running_servers", lambda: iter(running))
    with pytest.raises(ConfigurationError, match="no nats-streaming-server processes running"):
        send("quit")
    running += [7]
    send("reload")
    send("reopen=")
    assert sent == [(7, signal.SIGHUP), (7, signal.SIGUSR1)]
    running += [3]
    with pytest.raises(ConfigurationError) as caught:
        send("ldm")
    assert caught.value.message == "multiple nats-streaming-server processes running:\n3\n7"


def test_a_running_server_is_found(tmp_path: Path) -> None:
    script = tmp_path / "stan-broker"
    script.write_text("import time; print(flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if not Path("/proc/self/cmdline").exists():
                pytest.skip("no /proc here")
            assert process.pid in list(processes.running_servers())
        finally:
            process.kill()


# Reload


def start(tmp_path: Path, text: str, *argv: str) -> tuple[BrokerOptions, list[str]]:
    path = tmp_path / "a.conf"
    path.write_text(text)
    arguments = ["-c", str(path), *argv]
    options = parse(arguments, {})
    assert isinstance(options, BrokerOptions)
    return options, arguments


def reload(tmp_path: Path, before: str, after: str, *argv: str) -> ReloadResult:
    options, arguments = start(tmp_path, before, *argv)
    (tmp_path / "a.conf").write_text(after)
    return reload_options(options, arguments, {})


def refused(tmp_path: Path, before: str, after: str) -> str:
    with pytest.raises(ReloadProblem) as caught:
        reload(tmp_path, before, after)
    return caught.value.line


def test_reload(tmp_path: Path) -> None:
    found = reload(
        tmp_path,
        "streaming { id: a, sd: false }",
        "prof_port: 5, debug: true, logtime: false, log_file: x, pid_file: p, authorization { user: a, password: b }"
        "\nhost: 127.0.0.1\nstreaming { id: b, sd: true, mm: 7 }",
        "-V",
    )
    assert found.options.nats.debug and found.options.nats.trace
    assert found.options.nats.authorization.user == "a"
    # Neither the address nor anything about streaming changes.
    assert (found.options.nats.host, found.options.streaming.cluster_id) == ("0.0.0.0", b"a")
    assert found.options.logging.nats_debug and not found.options.logging.streaming_debug
    assert found.lines == ("Reloaded: logtime = false", "Reloaded: log_file = x", "Reloaded: pid_file = p")
    misplaced, unused = found.warnings
    assert '"mm" has no effect: it belongs into `store_limits' in misplaced
    assert unused == f"{tmp_path}/a.conf:1:0: prof_port has no effect in this server"


def test_what_cannot_be_reloaded(tmp_path: Path) -> None:
    said = "Reload: config reload not supported for"
    assert refused(tmp_path, "http: 5", "http: 6") == f"{said} HTTPPort: old=5, new=6"
    assert refused(tmp_path, "", "log_size_limit: 6") == f"{said} LogSizeLimit: old=0, new=6"
    assert refused(tmp_path, "", "http_base_path: /x") == f"{said} HTTPBasePath: old=/, new=/x"
    assert refused(tmp_path, "", "a {") == f"Reload: {tmp_path}/a.conf:1:2: '{{' has no '}}'"
    assert refused(tmp_path, "", "gateway { name: x }").startswith("Reload: not available yet: ")
    assert "cannot be higher than max_pending" in refused(tmp_path, "", "max_payload: 2MB, max_pending: 1MB")


def test_reload_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(ReloadProblem) as caught:
        reload_options(BrokerOptions(), [], {})
    assert caught.value.line == "Reload: can only reload config when a file is provided using -c or --config"
    options, arguments = start(tmp_path, "", "-ns", "nats://127.0.0.1:4222")
    with pytest.raises(ReloadProblem) as caught:
        reload_options(options, arguments, {})
    assert caught.value.line == "Reload supported only for embedded NATS Server's configuration"


# The catalogue


def test_the_page_of_options_names_everything() -> None:
    page = (Path(__file__).parents[3] / "docs" / "broker-options.md").read_text(encoding="utf-8")
    for section in SECTIONS:
        assert section.title in page
        for _, option in section.options:
            assert option.flags or option.keys
            assert all(f"`-{name}`" in page for name in option.flags)
            assert all(f"`{name}`" in page for name in option.keys)
            assert option.help or option.support is not Support.WORKS
    assert "\n\n\n" not in page


def test_names_of_keys_are_unique() -> None:
    for path in {section.path for section in SECTIONS}:
        sections = [section for section in SECTIONS if section.path == path]
        names = [name for section in sections for _, option in section.options for name in option.keys]
        assert len(names) == len(set(names))
        assert all(name == name.lower() for name in names)
