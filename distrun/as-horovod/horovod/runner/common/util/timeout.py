"""A time to wait until, with the error for when it is over."""

import time


class TimeoutException(Exception):  # noqa: N818 - Horovod's name
    """The time is over."""


class Timeout:
    """`timeout` seconds from now on."""

    def __init__(self, timeout: float, message: str) -> None:
        """`message` is the error's text, in which `{timeout}` stands for the seconds, `{activity}` for the work."""
        self._timeout, self._message = timeout, message
        self._until = time.time() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._until - time.time())

    def timed_out(self) -> bool:
        """Return whether the time is over."""
        return time.time() > self._until

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if the time is over."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))
