"""The verbs of the command line, one module each.

A verb has its `DOES` and `EXAMPLE` for `--help`, `add_arguments` for what it takes, and `run`,
which returns the exit status. What costs time to import is imported when the verb runs.
"""
