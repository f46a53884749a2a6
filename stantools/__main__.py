"""Where the program `stantools` begins, also as `python -m stantools`."""

import gc
import signal

#: Objects that are made before the first look for garbage: while modules are loaded there is none.
_GARBAGE = 20_000


def main() -> None:
    """Runs the command line; Ctrl-C while it is being loaded ends it silently."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(_GARBAGE)
    from stantools.cli.main import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
