"""The callback that tells `distrun sweep` how well a trial does."""

from __future__ import annotations

from distrun.errors import UsageError
from distrun.keras.callbacks.base import Callback, Logs
from distrun.runtime.collectives.trial import report


class ReportCallback(Callback):
    """Reports a metric to `distrun sweep` at the end of each epoch, where the trial may end; see `distrun.report`.

    It stands behind `MetricAverageCallback`. Outside of a sweep it does nothing.
    """

    def __init__(self, monitor: str = "val_loss") -> None:
        """Arguments:

        monitor: the metric; `loss` is there without validation data, too.
        """
        super().__init__()
        self.monitor = monitor

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Report, and end here if the trial is pruned.

        Raises:
            UsageError: there is no such metric.
            TrialPruned: the trial ends.
        """
        value = (logs or {}).get(self.monitor)
        if value is None:
            raise UsageError(
                f"ReportCallback({self.monitor!r}) finds no such metric: there are {', '.join(logs or {}) or 'none'}"
            )
        report(value, epoch + 1)
