"""`distrun predict`: how fast a job would be on more hosts, from the profile in its report."""
