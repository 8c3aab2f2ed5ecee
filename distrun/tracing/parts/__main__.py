"""`python -m distrun.tracing.parts FILE`: make a timeline from the parts that killed ranks have left."""

from __future__ import annotations

import os
import sys

from distrun.tracing.parts.merging import merge
from distrun.tracing.parts.part import folder_of
from distrun.tracing.timeline.options import TimelineOptions

if len(sys.argv) != 2:
    sys.exit("usage: python -m distrun.tracing.parts FILE, the timeline that was to be written")
if not folder_of(sys.argv[1]).is_dir():
    sys.exit(f"there is no folder {folder_of(sys.argv[1])}: nothing of such a timeline was left behind")
file = os.path.abspath(sys.argv[1])
print(f"ranks {', '.join(map(str, merge(folder_of(file), TimelineOptions(file))))}: {sys.argv[1]}")
