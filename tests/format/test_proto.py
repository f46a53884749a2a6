from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path("stantools/format/proto")


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / FOLDER).glob("*.proto")))
def test_the_generated_code_belongs_to_the_proto_file(tmp_path: Path, name: str) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    source = str(FOLDER / f"{name}.proto")
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", source]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    for generated in (f"{name}_pb2.py", f"{name}_pb2.pyi"):
        assert (tmp_path / FOLDER / generated).read_text() == (ROOT / FOLDER / generated).read_text()
