"""Ending the processes and removing the folders that ranks leave behind."""
