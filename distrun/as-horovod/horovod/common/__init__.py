"""The names that the modules of all frameworks have in common."""
