"""The names that `distrun` has for a rank. Each is written once: here, or in the `__all__` of the module that defines
it.

`import x as x` and `import *` are how Python's typing rules mark a re-export, for type checkers and editors.
"""

from distrun.contract.horovod import install_as_horovod as install_as_horovod
from distrun.runtime.collectives.copies import *
from distrun.runtime.collectives.initialisation import init as init
from distrun.runtime.collectives.objects import *
from distrun.runtime.collectives.reductions import *
from distrun.runtime.collectives.synchronisation import *
from distrun.runtime.collectives.tensors import empty as empty
from distrun.runtime.engine.autotuning.chosen import *
from distrun.runtime.operations.handle import Handle as Handle
from distrun.runtime.world.capabilities import (
    communication_memory as communication_memory,
    start_timeline as start_timeline,
    stop_timeline as stop_timeline,
)
from distrun.runtime.world.world import device as device, shutdown as shutdown, topology as topology
from distrun.shared_names import *
