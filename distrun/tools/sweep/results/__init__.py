"""The results of a sweep, in a folder: its record, the best trial and a study, and the table in the terminal.

`record` writes `sweep.json` and `trials.jsonl`, which are read to resume a sweep. `ranking` ranks trials, or groups of
trials that differ only in the seed. `table` shows a running sweep in a terminal, and `sentences` describe it without
one. `ending` writes the rest at the end: `best.json`, and by `study` a `study.db`, which `optuna-dashboard` shows.
"""
