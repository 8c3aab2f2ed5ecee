"""The results of a sweep, in a folder: its record, the best trial, a study; and the table in the terminal.

`record` writes `sweep.json` and `trials.jsonl`, from which a sweep is resumed. `standing` ranks trials, or groups of
trials that differ in nothing but the seed. `table` is what a terminal shows meanwhile, and `sentences` what is said
without one. `ending` writes the rest at the end: `best` writes `best.json`, and `study` writes `study.db`, which
`optuna-dashboard` shows.
"""
