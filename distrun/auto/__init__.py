"""Zero-line mode: a plain single-process training script, run on all ranks of a job (`distrun --auto`).

The launcher makes `python train.py` into `python -m distrun.auto global train.py`. What cannot be right is refused, in
words, before it goes wrong.

The room: `__main__` joins the job and runs the script, by `running`. `frameworks` notices when the script imports
torch or Keras and has the room of that framework change it: `torch`, `keras`. They share the rest: `job` is what is
known of the job, `refusing` ends it with a reason, `output` and `files` let rank 0 alone print and write, `randomness`
gives all ranks one start, `comparing` compares what they have trained, `rehearsal` has the first step made by one
process beforehand, `source` reads the script, and `explaining` prints what it finds (`distrun --auto=explain`).
"""
