"""A real Spark with two executors, which are processes on this machine."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines.system_packages import why_missing


def _why_not() -> str | None:
    """Return why Spark cannot be started here, or None."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return "Spark is not installed: pip install 'distrun[spark]'"
    return why_missing({"java": "default-jre-headless"})


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where Spark cannot be started."""
    if (reason := _why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory, for_folder: Callable[..., Any]) -> Any:
    """A session with two executors that take one task each."""
    return for_folder(Path(__file__).parent, _session(tmp_path_factory.mktemp("spark")))


@contextmanager
def _session(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_WORKER_DIR", str(folder / "work"))
        patch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's would look for the session
