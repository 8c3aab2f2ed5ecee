"""NCCL: `library` calls it through cupy, `reduction` translates requests, and `communicators` holds communicators."""
