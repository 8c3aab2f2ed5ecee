"""The machine underneath: processes, memory, names and threads, with no idea of jobs and ranks.

`descendants` adopts, signals and collects the processes below this one; `oom` reads the kernel's count of processes
that were killed for want of memory; `machine` knows this machine's names, cores and default slots; `installation`
knows where this distrun came from; `fan_out` does the same with many hosts at once, and a `loop` waits for many
descriptors. Agents, `connect`, `nodes`, `planning` and the doctor call down into this room; nothing here calls up.
"""
