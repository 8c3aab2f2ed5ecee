"""The machine: processes, memory, names and threads, independent of jobs and ranks.

`descendants` adopts, signals and reaps the processes below this one. `oom` reads the kernel's count of processes that
the OOM killer has ended. `machine` has this machine's names, cores and default slots, `cpus` divides its CPUs among
ranks, and `gpu_usage` measures its GPUs. `installation` finds out how distrun was installed. `fan_out` calls a function
for many hosts in parallel, and `loop` is an event loop. `scratch` makes temporary folders, `interrupt` handles an
early Ctrl-C, and `click_options` has options of command lines as rows. The layers above use this room, which uses none
of them.
"""
