"""Zero-line mode: a plain single-process training script, run on all ranks of a job (`distrun --auto`).

The launcher turns `python train.py` into `python -m distrun.auto global train.py`. A script that cannot be right on
several ranks is refused, with the reason and the lines to write instead, before it goes wrong.

The room: `__main__` joins the job and runs the script, by `running`. `frameworks` notices when the script imports torch
or Keras, and calls the room that changes that framework: `torch`, `keras`. They share the rest: `job` holds the facts
about the job, such as the seed of all ranks, `refusing` ends it with a reason, `output` and `files` let only rank 0
print and write, `comparing` compares what the ranks have trained, `rehearsal` lets one process make the first step
beforehand, `source` reads the script, and `explaining` prints what it finds (`distrun --auto=explain`).
"""
