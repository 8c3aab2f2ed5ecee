"""Command lines: the options of `distrun` and what they mean, and what each flag of other launchers becomes here.

`launch_options` and `elastic_options` declare the options of a launch; `request` makes of them what is planned, and
`job_options` what concerns the launcher's process only. Other launchers are horovodrun, mpirun and torchrun.
Each program is a module with its flags as data (`table`), which `translate` reads: the words of such a command line go
in, and those of a command line of distrun come out. The pages of the documentation are made from the same tables.
"""
