"""Runs a program on a kernel that seems to have no Landlock: its system calls answer ENOSYS. x86_64 only.

Arguments: the program and its arguments.
"""

import ctypes
import os
import struct
import sys

LANDLOCK_CREATE_RULESET, ENOSYS = 444, 38
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

filters = [
    (0x20, 0, 0, 0),  # load the system call's number
    (0x15, 0, 1, LANDLOCK_CREATE_RULESET),  # if it is this one …
    (0x06, 0, 0, ERRNO | ENOSYS),
    (0x06, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filters), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
