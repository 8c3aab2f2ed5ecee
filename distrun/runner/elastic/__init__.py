"""Elastic jobs: their effects. The decisions are those of `decisions.elastic`.

`preparation` checks what the user asks for and makes the `plan`. `job` executes a policy's actions beyond those of
every job: `hosts` starts agents and parts with them, and `processes` has these start processes and tells processes of
each generation. `host_list` knows the hosts that may be used, and `discovery` asks the user's script for them. No plain
launch imports anything here.
"""
