"""Kernel sources to PTX, by NVRTC: `libnvrtc.so.13` on the loader's path."""
import ctypes
import functools
from pathlib import Path

from ptx import Kernel

SOURCES = Path(__file__).resolve().parents[3] / "kernels/src/cu"


@functools.cache
def library():
    return ctypes.CDLL("libnvrtc.so.13")


def text_of(what, program):
    size = ctypes.c_size_t()
    getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, text)
    return text.value.decode()


@functools.cache
def kernel(name, **flags):
    """The kernel of that file, as Hopper runs it, with `flags` as macros."""
    program = ctypes.c_void_p()
    source = (SOURCES / f"{name}.cu").read_bytes()
    library().nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None)
    options = ["--gpu-architecture=compute_90a", "--std=c++17", f"-I{SOURCES}", *(f"-D{k}={v}" for k, v in flags.items())]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if library().nvrtcCompileProgram(program, len(options), array) != 0:
        raise SystemExit(f"{name} {flags}: {text_of('ProgramLog', program)}")
    return Kernel(text_of("PTX", program))
