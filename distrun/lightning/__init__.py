"""Training by Lightning on the ranks that `distrun` has started: `Trainer(strategy=DistrunStrategy())`.

    from distrun.lightning import DistrunStrategy  # distrun.pytorch_lightning for a script that imports that package

Lightning is in two packages, `lightning` and `pytorch_lightning`, whose classes do not fit together. So there are two
classes here, in `strategy` and in `distrun.pytorch_lightning`; `shared` has all that they do.
"""

from typing import TYPE_CHECKING

from distrun.exports import later as _later

if TYPE_CHECKING:
    from distrun.lightning.strategy import DistrunStrategy as DistrunStrategy
else:
    __all__ = ["DistrunStrategy"]
    __getattr__ = _later("distrun.lightning", DistrunStrategy="distrun.lightning.strategy")
