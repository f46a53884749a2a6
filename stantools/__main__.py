"""Where the program `stantools` begins, also as `python -m stantools`."""

import signal


def main() -> None:
    """Runs the command line; Ctrl-C while it is being loaded ends it without a word."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stantools.cli.main import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
