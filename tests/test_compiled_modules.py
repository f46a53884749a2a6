"""Compiled modules: never older than their sources, and no test changes what their objects do not look up."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools import compiled_modules

PROJECT = Path(__file__).parents[1]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one compiled module."""
    (tmp_path / "stantools").mkdir()
    (tmp_path / "stantools" / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(compiled_modules, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(compiled_modules.INTERPRETED, raising=False)
    compiled_modules.write_record(tmp_path, compiled_modules.hashes(["stantools.one"]))
    return tmp_path


def check() -> None:
    compiled_modules.check.__wrapped__()


def test_unchanged_sources(built: Path) -> None:
    check()
    compiled_modules.record(built).unlink()
    check()  # nothing is compiled


@pytest.mark.parametrize("content", ["x = 2\n", None])
def test_a_changed_source_is_refused(built: Path, content: str | None) -> None:
    source = built / "stantools" / "one.py"
    source.unlink() if content is None else source.write_text(content)
    with pytest.raises(SystemExit, match=r"stantools/one\.py has changed since it was compiled; run `make compiled`"):
        check()


def test_a_build_that_was_cut_off_is_refused(built: Path) -> None:
    compiled_modules.record(built).unlink()
    suffix = compiled_modules.EXTENSION_SUFFIXES[0]
    (built / "stantools" / f"compiled__mypyc{suffix}").touch()
    with pytest.raises(SystemExit, match="a build was cut off"):
        check()


def test_sources_instead_of_objects(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_modules.INTERPRETED, "1")
    (built / "stantools" / "one.py").write_text("x = 2\n")
    check()
    finder = sys.meta_path[0]
    spec = finder.find_spec("stantools.one", None)
    assert spec is not None and spec.origin == str(built / "stantools" / "one.py")
    assert finder.find_spec("stantools.two", None) is None


def compiled_sources() -> dict[str, ast.Module]:
    record = compiled_modules.record(PROJECT)
    if not record.exists():
        pytest.skip("nothing is compiled")
    names = [line.split()[1] for line in record.read_text().splitlines()]
    return {name: ast.parse((PROJECT / f"{name.replace('.', '/')}.py").read_text()) for name in names}


def fixed_names(module: ast.Module, compiled: dict[str, ast.Module]) -> Iterator[str]:
    """Names of a module that its object does not look up when it runs: constants, functions, classes, modules."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and "Final" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Import):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in compiled:
            fixed = set(fixed_names(compiled[node.module], compiled))
            yield from (each.asname or each.name for each in node.names if each.name in fixed)


def patches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines, and the changed thing as `module.name` or `module.Class.name`, of changes for the time of a test."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            known.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if not name.endswith(("patch", "object", "multiple", "setattr")):
            continue
        function, first = ast.unparse(node.func), node.args[0]
        if function.endswith("patch") and isinstance(first, ast.Constant):
            yield node.lineno, str(first.value)
        elif function.endswith(("patch.object", "patch.multiple", "setattr")) and ast.unparse(first) in known:
            names = [each.arg for each in node.keywords if each.arg]
            if not function.endswith("multiple"):
                names = [str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
            for name in names:
                yield node.lineno, f"{known[ast.unparse(first)]}.{name}"


def test_tests_change_only_what_objects_look_up() -> None:
    """A constant, a function or a method of a compiled module is fixed: to change it would test nothing."""
    compiled = compiled_sources()
    fixed = {f"{name}.{each}" for name, tree in compiled.items() for each in fixed_names(tree, compiled)}
    classes = {
        f"{name}.{each.name}" for name, tree in compiled.items() for each in tree.body if isinstance(each, ast.ClassDef)
    }
    wrong = []
    for path in sorted((PROJECT / "tests").rglob("*.py")):
        text = path.read_text()
        if not re.search("patch|setattr", text):
            continue
        for line, what in patches(ast.parse(text)):
            if what in fixed or what.rpartition(".")[0] in classes:
                wrong.append(f"{path.relative_to(PROJECT)}:{line}: {what}")
    assert not wrong


OPERATIONS = """def Commits.reset(self):
L0:
    self._flush = r3; r4 = is_error
    r5 = self.act()
    {}
    r7 = unbox(None, r6)
"""


@pytest.mark.parametrize(
    ("read", "refused"),
    [
        ("r6 = self._flush", True),
        ("r6 = borrow self._flush\n    inc_ref r6", True),
        ("r6 = borrow self._flush\n    if is_error(r6) goto L2 (error at reset:3) else goto L1\nL1:", True),
        ("r6 = self.act()", False),
    ],
)
def test_reads_of_attributes_that_were_set_to_none(read: str, refused: bool) -> None:
    setup = ast.parse((PROJECT / "setup.py").read_text())
    (check,) = (each for each in setup.body if isinstance(each, ast.FunctionDef) and each.name == "reads_of_none")
    found: dict[str, Any] = {"re": re}
    exec(compile(ast.Module([check], []), "setup.py", "exec"), found)
    assert found["reads_of_none"](OPERATIONS.format(read)) == (["Commits.reset"] if refused else [])
