"""The transport of small messages between the coordinator and all ranks.

`control_plane` sends and receives them. With many hosts, they go along the `control_tree`, over `tree_connections`.
"""
