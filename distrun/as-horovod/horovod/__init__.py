"""The package `horovod` by distrun: Horovod's names, parameters and defaults, for scripts written for Horovod.

`distrun --horovod` and `distrun.install_as_horovod()` put this package's folder on the search path of modules.
distrun's docs/parity.md lists what works, differs or is refused.
"""

from horovod.runner import run as run

__version__ = "0.28.1+distrun"
"""The version of Horovod whose interface this is.

The part after the plus sign, PEP 440's local version, names the implementation. Comparisons of versions still work:
`Version(horovod.__version__) >= Version("0.28.1")` is true.
"""
