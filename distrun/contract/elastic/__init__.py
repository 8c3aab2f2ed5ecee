"""Elastic jobs: how ranks and the launcher agree on the processes of the next generation of the world.

In an elastic job each rank has a socket to its agent, its *control channel*, and the agent passes messages on between
the rank and the launcher. `messages` are all that the launcher imports from here. `channel` is the rank's end of it.
"""
