"""The exception that leaves a training function at a step boundary, so that ranks can come or go."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  # Horovod's name
    """Ranks are to come or go: `elastic.run` takes the training function into the next generation.

    Raised by `state.advance()`, `state.commit()` and `state.check_host_updates()`.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync` is accepted for Horovod's sake. It has no effect: the ranks find out themselves what to send."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
