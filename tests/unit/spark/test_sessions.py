"""Errors of Spark, told in a sentence."""

import pytest

from distrun.spark.sessions import in_words

CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: "
BARRIER = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier "
    "ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(1, 0) finished "
    "unsuccessfully.\n"
)
FRAMES = "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\nDriver stacktrace:\n\tat java.base/java.lang"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            BARRIER + "java.lang.OutOfMemoryError: Java heap space\n" + FRAMES,
            "OutOfMemoryError: Java heap space; results of ranks travel through Spark: return less, or save it",
        ),
        (
            BARRIER + "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "task.py", line 41, in run_task\ndistrun.errors.BootstrapError: nobody answers\n\n' + FRAMES,
            "BootstrapError: nobody answers",
        ),
        (
            "org.apache.spark.SparkException: Job aborted due to stage failure: Total size of serialized results of 2 "
            "tasks (5.8 MiB) is bigger than spark.driver.maxResultSize (1024.0 KiB)\n" + FRAMES,
            "Total size of serialized results of 2 tasks (5.8 MiB) is bigger than spark.driver.maxResultSize (1024.0 "
            "KiB); results of ranks travel through Spark: return less, or save it",
        ),
        (
            "org.apache.spark.scheduler.BarrierJobRunWithDynamicAllocationException: [SPARK-24942]: Barrier execution "
            "mode does not support dynamic resource allocation for now.\n" + FRAMES,
            "BarrierJobRunWithDynamicAllocationException: [SPARK-24942]: Barrier execution mode does not support "
            "dynamic resource allocation for now.",
        ),
        ("", "it does not tell why"),
    ],
)
def test_the_reason_is_what_stands_before_javas_trace(text, sentence):
    assert in_words(CALL * bool(text) + text) == f"Spark could not run the tasks: {sentence}"
