"""The sources of trials: which values of the parameters are tried next.

`source` says what a source is. `listed` is one for grids and seeds, and `optuna_search` one that learns from the trials
before, by Optuna; `optuna_trials` has ranges and trials as Optuna knows them.
"""
