"""What it takes to start the program."""

from __future__ import annotations

from measure import Options, python, race, run, stantools, table, verdict
from stores import make_store

_HELP = "stantools --help"
_OF_SMALL = " of a store of 1 MB"
#: What a command may take, in seconds.
_TARGETS = {_HELP: 0.2, f"stantools info{_OF_SMALL}": 0.15, f"stantools verify{_OF_SMALL}": 0.15}
#: Bytes of the messages of the small store, and how many there are.
_SIZE, _MESSAGES = 128, 6000


def section(options: Options) -> str:
    """Measures start and imports."""
    with options.directory("starting") as place:
        store = make_store(place / "store", _MESSAGES, _SIZE, channels=3)
        commands = {
            "python -c pass": python("-c", "pass"),
            _HELP: stantools("--help"),
            "stantools verify --help": stantools("verify", "--help"),
            "python -c 'import numpy'": python("-c", "import numpy"),
            f"stantools info{_OF_SMALL}": stantools("info", store),
            f"stantools verify{_OF_SMALL}": stantools("verify", store),
        }
        ways = {name: (lambda c=command: run(c)) for name, command in commands.items()}
        results = race(ways, options.rounds * 4, warm=ways.values())
    unit = results["python -c pass"].seconds
    rows = []
    for name, took in results.items():
        most = _TARGETS.get(name)
        target = verdict(f"≤ {most:g} s", took.seconds <= most) if most else ""
        rows.append((name, took.seconds, took.processor, f"{took.seconds / unit:.1f}", f"{took.others:.1f}", target))
    return table(("", "s", "CPU s", "× python", "others", "target"), rows)
