"""Configuration: grammar of the files, options of the command line, limits."""
