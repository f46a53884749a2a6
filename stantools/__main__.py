"""The entry point of the program `stantools`, also run as `python -m stantools`."""

import gc
import signal

#: allocations before the first garbage collection; none happens while modules are loaded
_GARBAGE = 20_000


def main() -> None:
    """Runs the command line. Ctrl-C during loading ends it silently."""
    default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(_GARBAGE)
    from stantools.cli.main import main as run

    if default_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
