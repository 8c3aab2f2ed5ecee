"""One launch, from its options to its exit status.

`launch` is the command `distrun`, and `function` is `distrun.run`. `agent_command` is `distrun agent`, which joins a
launch, where `joined` launches a job on the hosts that have joined, and `joined_elastic` an elastic one.
"""
