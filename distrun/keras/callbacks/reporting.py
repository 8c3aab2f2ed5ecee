"""The callback that reports a trial's metric to `distrun sweep`."""

from __future__ import annotations

from distrun.errors import UsageError
from distrun.keras.callbacks.base import Callback, Logs
from distrun.runtime.collectives.trial import report


class ReportCallback(Callback):
    """Reports a metric to `distrun sweep` at the end of each epoch, where the trial may end. See `distrun.report`.

    Put it after `MetricAverageCallback`. Outside of a sweep it does nothing.
    """

    def __init__(self, monitor: str = "val_loss") -> None:
        """Arguments:

        monitor: the name of the metric. `loss` exists without validation data, too.
        """
        super().__init__()
        self.monitor = monitor

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Report the metric, and end the training if the trial is pruned.

        Raises:
            UsageError: there is no such metric.
            TrialPruned: the sweep ends the trial.
        """
        value = (logs or {}).get(self.monitor)
        if value is None:
            raise UsageError(
                f"ReportCallback({self.monitor!r}) finds no such metric: there are {', '.join(logs or {}) or 'none'}"
            )
        report(value, epoch + 1)
