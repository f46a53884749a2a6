"""A line of the server is explained in every form in which logs are kept."""

from __future__ import annotations

import json

import pytest

from stantools.inspection.explain import explain, explain_log
from stantools.inspection.logformats import server_lines

LINES = [
    '[1] 2022/07/15 11:17:01.239304 [ERR] STREAM: Unexpected EOF for file "/data/my store/orders/msgs.4.dat"',
    "[1] 2022/07/15 11:17:01.239304 [FTL] STREAM: Failed to start: unable to recover message store for "
    '[orders](file: "orders/msgs.4.idx"): unexpected EOF',
    '[1] 2022/07/15 11:17:01.239304 [FTL] STREAM: Failed to start: cluster ID "b" does not match '
    'recovered value of "a"',
    '[1] 2022/07/15 11:17:01.239304 [INF] STREAM: Channel "a {b} \\"c\\": x" has been deleted',
]


def docker(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2022-07-15T11:17:01.2Z"})


FORMS = {
    "Docker": docker,
    "Docker, through kubectl --prefix": lambda line: f"[pod/stan-0/stan] {docker(line)}",
    "journald": lambda line: json.dumps({"__CURSOR": "s=1", "PRIORITY": "6", "MESSAGE": line, "_PID": "1"}),
    "journald, bytes": lambda line: json.dumps({"MESSAGE": list(line.encode())}),
    "journald, twice the field": lambda line: json.dumps({"MESSAGE": ["Started.", line]}),
    "journald, pretty": lambda line: f'\t"MESSAGE" : {json.dumps(line)},',
    "journald, export": lambda line: f"MESSAGE={line}",
    "a JSON logger": lambda line: json.dumps({"level": "error", "message": line.split("] ", 2)[-1]}),
    "a cloud": lambda line: json.dumps({"jsonPayload": {"message": line}, "severity": "ERROR"}),
    "JSON in JSON": lambda line: docker(json.dumps({"msg": line})),
    "logfmt": lambda line: f"time=2022-07-15T11:17:01Z level=error msg={json.dumps(line)} pod=stan-0",
    "Kubernetes": lambda line: f"2022-07-15T11:17:01.239304Z stderr F {line}",
    "kubectl --prefix": lambda line: f"[pod/stan-0/stan] {line}",
    "kubectl --timestamps": lambda line: f"2022-07-15T11:17:01.239304Z {line}",
    "Compose": lambda line: f"stan-1  | {line}",
    "syslog": lambda line: f"Jul 15 11:17:01 host nats-streaming-server[812]: {line}",
    "syslog, RFC 5424": lambda line: f"<27>1 2022-07-15T11:17:01Z host stan 812 - - {line}",
    "systemd, without its own time": lambda line: f"Jul 15 11:17:01 host stan[812]: {line.split(' ', 3)[-1]}",
    "colours": lambda line: f"\x1b[36m{line}\x1b[0m".replace("[ERR]", "[\x1b[31mERR\x1b[0m]"),
    "colours of rsyslog": lambda line: line.replace("[ERR]", "[#033[31mERR#033[0m]"),
    "colours in JSON": lambda line: docker(line.replace("[FTL]", "[\x1b[31mFTL\x1b[0m]")),
    "quoted": lambda line: f"  '{line}'  ",
    "quotes eaten by a shell": lambda line: f"{{log:{line}\\n,stream:stderr,time:2022-07-15T11:17:01.2Z}}",
}


def test_forms_of_logs() -> None:
    for line in LINES:
        plain = explain(line)
        assert plain
        assert not [form for form, written in FORMS.items() if explain(written(line)) != plain], line


@pytest.mark.parametrize("form", ["Docker", "journald", "syslog"])
def test_a_whole_log(form: str) -> None:
    lines = [FORMS[form](each) for each in (*LINES, "[1] 2022/07/15 11:17:01 [INF] STREAM: ----")]
    assert explain_log(lines) == explain_log(LINES)


ODD = ["{", '{"log":', '{"log": 1}', '{"MESSAGE": [300, -1]}', "[" * 5000, '{"a":' * 5000, '"log":"' + "\\" * 999, ""]


def test_what_is_no_log() -> None:
    for text in ODD:
        assert explain(text) == [] and list(server_lines(text)), text[:40]
