"""The file for spark-submit: `spark-submit --master … PATH/OF/THIS/FILE verify STORES...`.

It has a directory of its own because Python searches modules beside the file that it runs first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def main() -> None:
    """Runs `stantools pipeline` with the arguments of spark-submit."""
    # Messages and progress go to the stderr of spark-submit, which joins both outputs into its stdout.
    with contextlib.suppress(OSError):  # without /proc they stay joined
        theirs = os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY | os.O_APPEND)
        os.dup2(theirs, 2)
        os.close(theirs)
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
    try:
        import stantools.cli.main as program
    except ModuleNotFoundError:  # a checkout that is not installed
        sys.path.insert(0, str(_HERE.parents[2]))
        import stantools.cli.main as program
    program.be_interruptible()
    program.cli.main(["pipeline", *sys.argv[1:]])


if __name__ == "__main__":
    main()
