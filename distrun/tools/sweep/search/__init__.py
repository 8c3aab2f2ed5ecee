"""The sources of trials: they choose the values of the parameters for the next trial.

`policy.upcoming` has the interface. `listed` is the source for grids and seeds, and `optuna_search` learns from the
earlier trials, by Optuna. `optuna_trials` converts ranges and trials to Optuna's forms.
"""
