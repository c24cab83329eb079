"""System calls that a program started by a test does not have."""

import ctypes


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter))]


def refuse_system_call(number, error):
    """A seccomp filter, as that of an old container runtime; or an old kernel, with ENOSYS."""
    libc = ctypes.CDLL(None, use_errno=True)
    filters = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, number), Filter(0x06, 0, 0, 0x00050000 | error),
                           Filter(0x06, 0, 0, 0x7FFF0000))
    program = Program(4, filters)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
