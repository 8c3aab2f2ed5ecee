"""Elastic jobs: their effects. The decisions are those of `supervision.elastic`.

`preparation` checks what the user asks for and plans it, `job` executes a policy's actions beyond those of every job,
`host_list` knows the hosts that may be used, and `discovery` asks the user's script for them. No plain launch imports
anything here.
"""
