"""A timeout, and the error that it raises."""

import time


class TimeoutException(Exception):  # noqa: N818 - Horovod's name
    """A timeout has expired."""


class Timeout:
    """A timeout that expires `timeout` seconds after it is created."""

    def __init__(self, timeout: float, message: str) -> None:
        """`message` is the error's text. `{timeout}` in it stands for the seconds, `{activity}` for the activity."""
        self._timeout, self._message = timeout, message
        self._until = time.time() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._until - time.time())

    def timed_out(self) -> bool:
        """Return whether the timeout has expired."""
        return time.time() > self._until

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if the timeout has expired."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))
