"""What the process of a broker asks of the C library."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: How many new pages it takes to have blocks come and go, as those do that are read from files for a subscriber.
BLOCKS = """
import resource
from broker.driver import keep_freed_memory
keep_freed_memory()
def come_and_go():
    held = []
    for _ in range(400):
        held.append(b"x" * (640 << 10))
        del held[:-4]
        b"y" * (700 << 10)
come_and_go()
begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library cannot be asked")
def test_blocks_that_come_and_go_are_in_the_same_pages():
    done = subprocess.run([sys.executable, "-c", BLOCKS], cwd=ROOT, capture_output=True, text=True, check=True)
    # Without it there are some sixty for each block.
    assert int(done.stdout) < 400
