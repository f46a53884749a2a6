from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = "stantools/format/proto/store.proto"


def test_the_generated_code_belongs_to_the_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    for name in ("store_pb2.py", "store_pb2.pyi"):
        folder = Path(PROTO).parent
        assert (tmp_path / folder / name).read_text() == (ROOT / folder / name).read_text()
