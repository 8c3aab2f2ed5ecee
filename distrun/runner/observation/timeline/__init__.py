"""The timeline of a job, `--timeline`: its options, and the consumer that writes it."""
