"""Zero-line mode: a plain single-process training script, run on all ranks of a job (`distrun --auto`)."""
