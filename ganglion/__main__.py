"""`python -m ganglion`."""

import sys

from ganglion.cli import main

sys.exit(main())
