"""Log lines: format, levels, files, rotation, reopening, syslog."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.broker_options import LoggingOptions
from broker.config.logs import LONGEST, LineFormatter, LogFiles, configured, level_of, startup_problem
from broker.config.values import ConfigurationError
from broker.log import NATS, STREAMING, TRACE

LINE = re.compile(r"\[(\d+)\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[([A-Z]{3})\] (.*)")


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    assert not NATS.handlers and not STREAMING.handlers


def say_everything() -> None:
    for logger in (NATS, STREAMING):
        for level in (TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logger.log(level, "level %d", level)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n")
    with configured(LoggingOptions(file=str(path))):
        say_everything()
    before, *written = lines(path)
    assert before == "before"
    found = [LINE.fullmatch(line) for line in written]
    assert [match and (int(match[1]), match[3], match[4]) for match in found] == [
        (os.getpid(), name, f"{prefix}level {level}")
        for prefix in ("", "STREAM: ")
        for name, level in (("INF", 20), ("WRN", 30), ("ERR", 40), ("FTL", 50))
    ]


def test_mode_of_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with configured(LoggingOptions(file=str(tmp_path / "a.log"))):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a.log").stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (LoggingOptions(nats_debug=True), ["DBG level 10"]),
        (LoggingOptions(nats_trace=True), ["TRC level 5"]),
        (LoggingOptions(streaming_debug=True), ["DBG STREAM: level 10"]),
        (LoggingOptions(streaming_trace=True), ["TRC STREAM: level 5"]),
        (LoggingOptions(nats_debug=True, nats_trace=True), ["TRC level 5", "DBG level 10"]),
    ],
)
def test_debug_and_trace_are_independent(
    options: LoggingOptions, wanted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with configured(options):
        say_everything()
    matches = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    found = [f"{match[3]} {match[4]}" for match in matches if match]
    assert [line for line in found if line[:3] in ("DBG", "TRC")] == wanted
    assert len(found) == len(matches) == 8 + len(wanted)


def test_times() -> None:
    record = logging.LogRecord(NATS.name, logging.INFO, "", 0, "x %s", ("y",), None)
    record.created = 1_600_000_000.25
    assert LineFormatter(timestamps=False).format(record) == f"[{os.getpid()}] [INF] x y"
    assert LineFormatter(utc=True).format(record) == f"[{os.getpid()}] 2020/09/13 12:26:40.250000 [INF] x y"
    coloured = LineFormatter(timestamps=False, colours=True)
    assert coloured.format(record) == f"[{os.getpid()}] [\x1b[32mINF\x1b[0m] x y"
    record.levelno = logging.WARNING
    assert "[\x1b[0;93mWRN\x1b[0m]" in coloured.format(record)


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with configured(LoggingOptions()):
        NATS.error("x")
    assert "[\x1b[31mERR\x1b[0m] x\n" in stream.getvalue()


def test_one_line_stays_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with configured(LoggingOptions(file=str(path), timestamps=False)):
        NATS.info("%s", "a\n[1] [FTL] b\rc\udcff")
        NATS.info("%d", "wrong")
    assert lines(path) == [f"[{os.getpid()}] [INF] a\\n[1] [FTL] b\\rc\\udcff", f"[{os.getpid()}] [INF] %d ('wrong',)"]


def test_nothing_steers_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with configured(LoggingOptions(file=str(path), timestamps=False)):
        STREAMING.info("zoë\t%s", "\x1b[2J \x00\x7f\x85\x9b \u2028 €")
        turning = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
        NATS.info("%s", "".join(f"a{chr(code)}b" for code in turning))
    assert lines(path) == [
        f"[{os.getpid()}] [INF] STREAM: zoë\t\\x1b[2J \\x00\\x7f\\x85\\x9b \\u2028 €",
        f"[{os.getpid()}] [INF] " + "".join(f"a\\u{code:04x}b" for code in turning),
    ]


def test_reopening(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    with configured(LoggingOptions(file=str(path), timestamps=False)) as files:
        NATS.info("one")
        path.rename(tmp_path / "b.log")
        NATS.info("two")
        files.reopen()
        NATS.info("three")
    assert [line.split("] ")[-1] for line in lines(tmp_path / "b.log")] == ["one", "two"]
    assert [line.split("] ")[-1] for line in lines(path)] == ["File log re-opened", "three"]
    with configured(LoggingOptions()) as files:
        files.reopen()
    assert "File log re-open ignored, not a file logger" in capsys.readouterr().err


def test_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with configured(LoggingOptions(file=str(path), size_limit=200)):
        for number in range(8):
            NATS.info("line %d of a log that is rotated", number)
    backups = sorted(tmp_path.glob("a.log.*"))
    assert backups and all(re.fullmatch(r"a\.log\.\d{4}(\.\d\d){5}\.\d{9}", each.name) for each in backups)
    assert lines(backups[1])[0].endswith(f'[INF] Rotated log, backup saved as "{backups[0]}"')
    assert lines(path)[0].endswith(f'[INF] Rotated log, backup saved as "{backups[-1]}"')
    everything = "".join(each.read_text() for each in (*backups, path))
    assert [int(number) for number in re.findall(r"line (\d) of", everything)] == list(range(8))


def test_a_file_that_is_too_big_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("x" * 300 + "\n")
    with configured(LoggingOptions(file=str(path), size_limit=200)):
        pass
    (backup,) = tmp_path.glob("a.log.*")
    assert lines(backup)[1].endswith("Rotating logfile...")
    assert "Rotated log" in path.read_text()


def test_a_rotation_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"

    def fail(*_: object) -> None:
        raise OSError(13, "Permission denied")

    with configured(LoggingOptions(file=str(path), size_limit=100)):
        monkeypatch.setattr(os, "rename", fail)
        for number in range(5):
            NATS.info("line %d of a log that is not rotated", number)
        monkeypatch.undo()
    assert f'Unable to rotate the logfile "{path}": permission denied' in path.read_text()
    assert len(re.findall("line [0-9] of", path.read_text())) == 5


def test_a_full_disk_is_no_reason_to_stop() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with configured(LoggingOptions(file="/dev/full")):
        NATS.info("lost")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught, configured(LoggingOptions(file=str(tmp_path / "no" / "a.log"))):
        pass
    assert caught.value.message == f"error opening file: open {tmp_path}/no/a.log: no such file or directory"
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d x", startup_problem("x"))


def test_other_options(tmp_path: Path) -> None:
    one, two = LoggingOptions(file=str(tmp_path / "1")), LoggingOptions(file=str(tmp_path / "2"), nats_debug=True)
    files = LogFiles(one)
    try:
        NATS.debug("a")
        files.apply(two)
        NATS.debug("b")
        files.apply(two)
        with pytest.raises(ConfigurationError):
            files.apply(LoggingOptions(file=str(tmp_path / "no" / "3")))
        STREAMING.info("c")
    finally:
        files.close()
    assert lines(tmp_path / "1") == []
    assert [line.split("] ")[-1] for line in lines(tmp_path / "2")] == ["b", "STREAM: c"]


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        yield server


def test_remote_syslog(udp: socket.socket) -> None:
    url = f"udp://127.0.0.1:{udp.getsockname()[1]}"
    with configured(LoggingOptions(remote_syslog=url, syslog=True)):
        STREAMING.info("hello")
    line = udp.recv(4096).decode()
    assert re.fullmatch(rf"<29>\S+T\S+ \S+ nats-streaming-server\[{os.getpid()}\]: STREAM: hello\n", line)


def test_remote_syslog_over_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        with configured(LoggingOptions(remote_syslog=f"tcp://127.0.0.1:{server.getsockname()[1]}")):
            connection, _ = server.accept()
            NATS.error("one")
            connection.settimeout(10)
            assert connection.recv(4096).endswith(b": one\n")
            # Whoever has gone away does no harm.
            connection.close()
            for _ in range(5):
                NATS.error("lost")


def test_a_syslog_that_reads_nothing_delays_no_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        with configured(LoggingOptions(remote_syslog=f"tcp://127.0.0.1:{server.getsockname()[1]}")) as files:
            connection, _ = server.accept()
            # Far more than the buffers of a connection hold: a sender that waits would not come to an end.
            for _ in range(2000):
                NATS.info("%s", "x" * LONGEST)
            files.apply(LoggingOptions(file=os.devnull))
            connection.close()


def test_a_syslog_that_comes_back_gets_lines_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        with configured(LoggingOptions(remote_syslog=f"tcp://127.0.0.1:{server.getsockname()[1]}")):
            server.accept()[0].close()
            while True:
                NATS.error("again")
                try:
                    server.settimeout(0.05)
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                break
            connection.settimeout(30)
            with connection:
                while not (line := connection.recv(4096)):
                    NATS.error("again")
            assert b": again\n" in line


def test_syslog_by_path(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "s"))
        server.settimeout(10)
        with configured(LoggingOptions(remote_syslog=f"unix://{tmp_path}/s")):
            NATS.warning("x")
        assert server.recv(4096).startswith(b"<28>")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://x", 'error invalid network type: "foo"'),
        ("x", 'error invalid network type: ""'),
        ("udp://x", "error connecting to syslog: udp://x: the port is missing"),
        ("tcp://127.0.0.1:1", "error connecting to syslog: tcp://127.0.0.1:1: connection refused"),
        ("udp://[:5", "error connecting to syslog: "),
        ("udp://x:99999999", "error connecting to syslog: "),
        ("unix:///no/such", "error connecting to syslog: "),
    ],
)
def test_syslog_that_is_not_there(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LogFiles(LoggingOptions(remote_syslog=url))
    assert caught.value.message.startswith(said)


def test_levels() -> None:
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, TRACE)
    found = [level_of(level) for level in levels]
    assert [label for label, _ in found] == ["FTL", "ERR", "WRN", "INF", "DBG", "TRC"]
    assert [priority - 24 for _, priority in found] == [2, 3, 4, 5, 7, 5]


def test_lines_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with configured(LoggingOptions(file=str(path))):
        STREAMING.info("[Client:%s]", "\n" * 1_000_000)
    [line] = lines(path)
    assert len(line) < 3 * LONGEST
    assert line.endswith("more characters)")


def test_times_of_lines_in_the_same_second_and_at_its_end() -> None:
    lines = LineFormatter(utc=True)
    record = logging.LogRecord(NATS.name, logging.INFO, "", 0, "text", (), None)
    shown = []
    for record.created in (1_600_000_000.0, 1_600_000_000.25, 1_600_000_000.9999997, 1_600_000_059.5, 1_600_000_000.5):
        shown.append(lines.format(record).split(" ")[2])
    assert shown == ["12:26:40.000000", "12:26:40.250000", "12:26:41.000000", "12:27:39.500000", "12:26:40.500000"]


def test_a_record_of_the_servers_is_complete_for_other_handlers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, NATS.name):
        NATS.info("%(one)s and %(two)d", {"one": "a", "two": 2})
    record = caplog.records[-1]
    assert record.getMessage() == "a and 2"
    assert vars(record).keys() >= vars(logging.LogRecord("", 0, "", 0, "", (), None)).keys()
    assert logging.Formatter("%(levelname)s %(asctime)s %(filename)s:%(lineno)d %(message)s").format(record)
