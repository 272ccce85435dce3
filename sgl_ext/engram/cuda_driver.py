"""The two driver calls that PyTorch does not offer, through ctypes: host functions and plain copies.

Both may be captured into a CUDA graph. The host function is native code; ctypes only passes its address.
"""

from __future__ import annotations

import ctypes
from functools import cache

from sgl_ext.errors import EngramReadError


@cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchHostFunc.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    library.cuMemcpyHtoDAsync_v2.argtypes = (
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    return library


def launch_host_function(stream: int, function_address: int, argument_address: int) -> None:
    """Enqueues function(argument) on the stream; it runs on a thread of the driver and must not call CUDA."""
    _check("cuLaunchHostFunc", _driver().cuLaunchHostFunc(stream, function_address, argument_address))


def copy_to_device(stream: int, device_address: int, host_address: int, num_bytes: int) -> None:
    """Enqueues a copy from pinned memory."""
    _check("copy", _driver().cuMemcpyHtoDAsync_v2(device_address, host_address, num_bytes, stream))


def _check(call: str, code: int) -> None:
    if code != 0:
        raise EngramReadError(
            f"The CUDA driver's {call} must succeed, got error {code} (Engram rows).",
            hint="look for an earlier CUDA error in this log",
        )
