"""Draw the pictures of the pages, of real jobs and pages: scripts/docs pictures [NAME ...]"""

from __future__ import annotations

import sys

import pages
import screens
import timeline

PICTURES = {
    "jobs": screens.jobs,
    "help": screens.help,
    "live": screens.live,
    "timeline": timeline.main,
    "report": pages.report,
    "site": pages.site,
}

for name in sys.argv[1:] or PICTURES:
    PICTURES[name]()
