"""Run as `python3 -c THIS LIBRARY`: registers memory with every RDMA device as NCCL will, and gives it back.

Prints {device: why it failed, or null}. A process of its own: a driver that crashes takes only this along.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys

# A page, what NCCL takes per channel, and more than a kernel without contiguous memory hands out.
SIZES_BYTES = (4096, 1 << 20, 64 << 20)
# Local write, remote write, remote read.
ACCESS = 7


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path, use_errno=True)
    pointer = ctypes.c_void_p
    library.ibv_get_device_list.restype = ctypes.POINTER(pointer)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    for name in ("ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr"):
        getattr(library, name).restype = pointer
    for name in ("ibv_get_device_name", "ibv_open_device", "ibv_alloc_pd", "ibv_dereg_mr", "ibv_dealloc_pd",
                 "ibv_close_device"):  # fmt: skip
        getattr(library, name).argtypes = [pointer]
    library.ibv_reg_mr.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int]
    return library


def failure(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno()) if ctypes.get_errno() else 'it failed without errno'}"


def register(library: ctypes.CDLL, device: int) -> str | None:
    ctypes.set_errno(0)
    context = library.ibv_open_device(device)
    if not context:
        return failure("ibv_open_device")
    domain = library.ibv_alloc_pd(context)
    why = None if domain else failure("ibv_alloc_pd")
    for size in SIZES_BYTES if domain else ():
        memory = mmap.mmap(-1, size)
        place = (ctypes.c_char * size).from_buffer(memory)
        region = library.ibv_reg_mr(domain, ctypes.addressof(place), size, ACCESS)
        if region:
            library.ibv_dereg_mr(region)
        del place
        memory.close()
        if not region:
            why = failure(f"ibv_reg_mr of {size} bytes")
            break
    if domain:
        library.ibv_dealloc_pd(domain)
    library.ibv_close_device(context)
    return why


def main(path: str) -> None:
    library = load(path)
    count = ctypes.c_int(0)
    devices = library.ibv_get_device_list(ctypes.byref(count))
    found = {}
    for index in range(count.value if devices else 0):
        name = library.ibv_get_device_name(devices[index]).decode()
        found[name] = register(library, devices[index])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
