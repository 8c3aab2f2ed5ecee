"""The package `horovod` by distrun: Horovod's names, parameters and defaults, for scripts written for it.

`distrun --horovod` and `distrun.install_as_horovod()` put this package's folder on the search path of modules. What
works, differs or is refused is in distrun's docs/parity.md.
"""

from horovod.runner import run as run

__version__ = "0.28.1+distrun"
"""The version of Horovod whose interface this is. What follows the plus sign, PEP 440's local version, says whose it
is; comparing versions takes no account of it, as in `Version(horovod.__version__) >= Version("0.28.1")`."""
