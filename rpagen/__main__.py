"""`python -m rpagen`: the command line, where no console script is at hand."""

import sys

from rpagen.cli import main

if __name__ == "__main__":
    sys.exit(main())
