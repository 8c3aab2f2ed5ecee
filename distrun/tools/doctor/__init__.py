"""`distrun doctor`: finding out, before a job is started, what would keep it from running on these hosts.

`command` is the command line, and `run` makes a `report`, which `rendering` prints. On each host, `host_checks` takes
one step after the other: first the steps to reach it (`connect`: none, SSH or srun), then the requests to a small
program on the host, the `probe`, which is started like an agent and asked through a `probe_client`. It gathers
`machine_facts` and `gpus`. While all probes run, `network` measures between every pair of them. `verdicts` judges the
findings, without side effects, and `shell_commands` gives the commands that show the same to a person. With `--gpu`,
`gpu_checks` follow on hosts with GPUs. `build` is another command, `distrun --check-build`: what works on this machine.
"""
