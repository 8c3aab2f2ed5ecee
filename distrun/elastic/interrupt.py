"""The exception by which a training function is left at a step boundary, for others to join."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  # Horovod's name
    """Ranks are to come or go: `elastic.run` takes the training function into the next generation.

    Raised by `state.advance()`, `state.commit()` and `state.check_host_updates()`.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync` is Horovod's, and kept: what has to be sent, the ranks find out by themselves."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
