"""A launch, from its options to its exit status.

`launch` is the command `distrun`, and `function` is `distrun.run`. `agent_command` is `distrun agent`, which runs on
every host and reads the host's place from its `surroundings`. On host 0, `joined` launches a job on the hosts that have
joined.
"""
