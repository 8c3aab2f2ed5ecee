"""Makes the package of benchmarks importable, which is not installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
