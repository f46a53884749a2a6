"""`python -m broker` is the same as `stan-broker`."""

from broker.cli import console

console()
