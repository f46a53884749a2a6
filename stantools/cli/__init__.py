"""The command line: one module per verb; the only part that reads the environment, prints or exits."""
