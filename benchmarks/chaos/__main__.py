"""python -m benchmarks.chaos --help."""

import sys

from benchmarks.chaos.campaign import main

sys.exit(main())
