"""Ending and removing what ranks have left: processes, and folders."""
