"""The command line: one module a verb; the only part that reads the environment, prints or exits."""
