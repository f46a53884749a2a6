"""The budget of the product: lines of each package, class names that are unique, module names that are rare.

`make check` runs it. `python tests/budget.py --lower` writes the present sizes where they are below the budget; a
larger budget is written by hand, with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_suffix(".toml")
TOPS = ("stantools", "broker", "tui")
MAX_SAME_MODULE_NAMES = 3


def modules() -> Iterator[Path]:
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                yield path.relative_to(ROOT)


def package_of(module: Path) -> str:
    """`broker.nats` for every module below broker/nats, `broker` for broker/process.py."""
    return ".".join(module.parts[: min(2, len(module.parts) - 1)])


def sizes() -> Counter[str]:
    lines: Counter[str] = Counter()
    for module in modules():
        lines[package_of(module)] += len((ROOT / module).read_text(encoding="utf-8").splitlines())
    return lines


def size_problems(budget: dict[str, int], lines: Counter[str]) -> Iterator[str]:
    for package, count in lines.items():
        if package not in budget:
            yield f"{package} has no budget: add it to {BUDGET.relative_to(ROOT)} ({count} lines)"
        elif count > budget[package]:
            yield (
                f"{package} has {count} lines, its budget is {budget[package]}: make it smaller, or raise it in "
                f"{BUDGET.relative_to(ROOT)} and say why"
            )
    for package in budget.keys() - lines.keys():
        yield f"{package} is in the budget, and is not a package"


def class_problems(shared: list[str]) -> Iterator[str]:
    """Class names that two modules define; a leading underscore makes no difference."""
    places = defaultdict(list)
    for module in modules():
        for node in ast.parse((ROOT / module).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{module}:{node.lineno}")
    for name, where in places.items():
        if len(where) > 1 and name not in shared:
            yield f"several classes are called {name}: {', '.join(where)}"


def module_problems() -> Iterator[str]:
    names = Counter(module.stem for module in modules() if not module.stem.startswith("__"))
    for name, count in names.items():
        if count > MAX_SAME_MODULE_NAMES:
            yield f"{count} modules are called {name}.py; at most {MAX_SAME_MODULE_NAMES} may be"


def lower(budget: dict[str, int], lines: Counter[str]) -> None:
    text = BUDGET.read_text(encoding="utf-8")
    for package, count in lines.items():
        if count < budget.get(package, 0):
            text = re.sub(rf'^("{re.escape(package)}" = )\d+', rf"\g<1>{count}", text, flags=re.MULTILINE)
    BUDGET.write_text(text, encoding="utf-8")


def main() -> int:
    settings = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    budget, lines = settings["lines"], sizes()
    if "--lower" in sys.argv[1:]:
        lower(budget, lines)
    problems = [*size_problems(budget, lines), *class_problems(settings["shared-class-names"]), *module_problems()]
    for problem in problems:
        sys.stderr.write(f"budget: {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
