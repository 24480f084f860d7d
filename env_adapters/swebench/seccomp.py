"""System call filter for sandboxes.

Owns the list of refused calls and its compilation to a BPF program for bubblewrap. Refused are calls that use memory
outside of the limits, access other processes, or open kernel interfaces that repairing code does not need, sockets of
unusual families among them: those of AF_VSOCK reach the host of a virtual machine past the network namespace.
"""

import platform
import struct

# Number on x86-64 and on arm64.
_REFUSED = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_setup": (206, 0),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
}
# Name of the machine: its audit number and its column above.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_SOCKET = (41, 198)
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_X32 = 0x40000000  # bit of the calls of x86-64's x32 interface, whose numbers are not in the table

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter: fail with EPERM


def build_filter(machine: str | None = None) -> bytes:
    """Return the BPF program.

    Args:
        machine: As ``platform.machine()`` names it, which is the default.

    Raises:
        ValueError: If the machine is unknown.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(f"no system call filter for machine {machine!r}; known: {', '.join(_MACHINES)}")
    audit, column = _MACHINES[machine]
    numbers = [row[column] for row in _REFUSED.values()]
    families = len(_FAMILIES)
    refuse = len(numbers) + families + 3  # length of the jump from the x32 check to the last instruction
    program = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 0, refuse + 2, audit),
        (_LOAD, 0, 0, 0),  # the call's number
        (_AT_LEAST, refuse, 0, _X32),
        *((_EQUAL, refuse - 1 - index, 0, number) for index, number in enumerate(numbers)),
        (_EQUAL, 0, families + 1, _SOCKET[column]),
        (_LOAD, 0, 0, 16),  # the first argument, which is an int
        *((_EQUAL, families - index - 1, 0, family) for index, family in enumerate(_FAMILIES[:-1])),
        (_EQUAL, 0, 1, _FAMILIES[-1]),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
