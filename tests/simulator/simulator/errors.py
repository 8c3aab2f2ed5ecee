"""CUDA's errors by number, in CUDA's words."""

from __future__ import annotations

from typing import Any

INVALID_VALUE = 1
INVALID_DEVICE = 101
PEER_UNSUPPORTED = 217
INVALID_HANDLE = 400
NOT_READY = 600
ILLEGAL_ADDRESS = 700
PEER_ALREADY_ENABLED = 704
LAUNCH_FAILURE = 719
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_MERGE = 902
CAPTURE_UNMATCHED = 903
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATION = 905
CAPTURE_IMPLICIT = 906
CAPTURED_EVENT = 907

_WORDS = {
    0: ("cudaSuccess", "no error"),
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    217: ("cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    600: ("cudaErrorNotReady", "device not ready"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    709: ("cudaErrorContextIsDestroyed", "context is destroyed"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    902: ("cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"),
    903: ("cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"),
    904: ("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
    905: ("cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    906: (
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
    999: ("cudaErrorUnknown", "unknown error"),
}
_UNKNOWN = ("unrecognized error code", "unrecognized error code")


class CUDARuntimeError(RuntimeError):
    """The error of CUDA's runtime, as cupy.cuda.runtime has it."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(": ".join(_WORDS.get(status, _UNKNOWN)))

    def __reduce__(self) -> Any:
        return type(self), (self.status,)


class Violation(RuntimeError):  # noqa: N818 (it is none of CUDA's errors)
    """The program has done something with which a real GPU would sometimes compute wrong results."""
