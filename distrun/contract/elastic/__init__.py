"""Elastic jobs: how a rank and the launcher agree on which processes make up the next generation of the world.

In an elastic job each rank has a socket to its agent, its *control channel*, and the agent passes on to the launcher
what comes there. `messages` are what they say to each other, and are all that the launcher knows of this room.
"""
