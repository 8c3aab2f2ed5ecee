"""Pictures of pages in a browser, on a desktop and on a phone: a report, and the site."""

from __future__ import annotations

import functools
import http.server
import io
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from browser import Browser
from PIL import Image
from terminal import DOCS, PROGRAMS, REPOSITORY, printed

SCREENSHOTS = DOCS / "screenshots"
DESKTOP, PHONE = (1280, 900), (360, 740)
COLOURS = 192
"""The colours of a picture, which is a third as large as with all of them."""


def report() -> None:
    """docs/report.png and docs/screenshots/report-phone.png: the report of a job with a slow rank."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PROGRAMS / "slow.py", Path(folder, "train.py"))
        printed("distrun -np 2 --report report.html python train.py", Path(folder), 100)
        page = f"file://{folder}/report.html"
        photograph(page, DOCS / "report.png", (1000, 1430))
        photograph(page, SCREENSHOTS / "report-phone.png", PHONE)


def site() -> None:
    """docs/screenshots/site*.png: the front page, the options on a phone, and the reference of torch."""
    subprocess.run([sys.executable, "docs/site/assemble.py"], cwd=REPOSITORY, check=True)
    subprocess.run(["zensical", "build", "--clean"], cwd=REPOSITORY, check=True)
    handler = functools.partial(Quiet, directory=str(REPOSITORY / "build" / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    photograph(f"{address}/", SCREENSHOTS / "site.png", DESKTOP)
    photograph(f"{address}/reference/command-line/", SCREENSHOTS / "site-phone.png", PHONE)
    photograph(f"{address}/reference/torch/#distributedoptimizer", SCREENSHOTS / "site-reference.png", DESKTOP)
    server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *args: object) -> None:
        pass


def photograph(address: str, target: Path, size: tuple[int, int]) -> None:
    """Write what a browser of this size shows of a page."""
    with tempfile.TemporaryDirectory() as profile, Browser(address, Path(profile), *size) as page:
        page.evaluate("new Promise((done) => setTimeout(done, 500))")  # menus move
        shown = Image.open(io.BytesIO(page.picture())).convert("RGB")
    shown.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"written: {target}, {target.stat().st_size // 1000} kB")
