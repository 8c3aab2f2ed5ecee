"""The ways of small messages between the coordinator and all ranks.

`control_plane` sends and receives them. Where hosts are many they go along the `control_tree`, by `tree_connections`.
"""
