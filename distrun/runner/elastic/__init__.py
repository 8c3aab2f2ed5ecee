"""Elastic jobs: what executes the actions of `decisions.elastic`.

`preparation` checks the user's request and makes the plan. `job` executes the policy's actions: `hosts` starts agents
and removes them, and `processes` sends these the frames that start processes and assign ranks. `host_list` has the
hosts that may be used, and `discovery` gets them from the user's script. Jobs that are not elastic import nothing from
here.
"""
