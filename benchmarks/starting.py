"""What it takes to start the program."""

from __future__ import annotations

from measure import Options, python, race, run, stantools, table, verdict

_HELP = "stantools --help"
_SECONDS = 0.2


def section(options: Options) -> str:
    """Measures start and imports."""
    commands = {
        "python -c pass": python("-c", "pass"),
        _HELP: stantools("--help"),
        "stantools verify --help": stantools("verify", "--help"),
        "python -c 'import numpy'": python("-c", "import numpy"),
    }
    ways = {name: (lambda c=command: run(c)) for name, command in commands.items()}
    results = race(ways, options.rounds * 4, warm=ways.values())
    unit = results["python -c pass"].seconds
    rows = []
    for name, took in results.items():
        target = verdict(f"≤ {_SECONDS:g} s", took.seconds <= _SECONDS) if name == _HELP else ""
        rows.append((name, took.seconds, took.processor, f"{took.seconds / unit:.1f}", f"{took.others:.1f}", target))
    return table(("", "s", "CPU s", "× python", "others", "target"), rows)
