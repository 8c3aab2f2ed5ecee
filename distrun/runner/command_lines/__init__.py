"""The command lines of other launchers, horovodrun, mpirun and torchrun, and what each of their flags becomes here.

Each program is a module with its flags as data (`table`), which `translate` reads: the words of such a command line go
in, and those of a command line of distrun come out. The pages of the documentation are made from the same tables.
"""
