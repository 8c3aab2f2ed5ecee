"""Command lines: the options of `distrun`, and the translation of other launchers' flags into them.

`launch_options` and `elastic_options` declare the options of a launch. `request` converts them to the request that is
planned, and `job_options` to the options that concern only the launcher's process. `settings_file` reads options from
distrun.toml and pyproject.toml. Other launchers are horovodrun, mpirun and torchrun. Each is a module with its flags as
data (`table`), which `translate` uses to convert a command line to one of distrun. `borrowed` translates their flags in
a command line of distrun itself. The pages of the documentation are made from the same tables.
"""
