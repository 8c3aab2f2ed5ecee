"""All features, then all faults, in one job: every rank spends seconds on importing a backend."""

import checking
import features  # noqa: F401 - registers what is in it

import faults  # noqa: F401 # isort: skip - what fails comes last

checking.run_features()
