"""What does an Xid number in the kernel's log mean? NVIDIA's catalogue in our words: what failed, and what helps.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), the table of Xid numbers and its column of immediate actions.
A number that is not here is of class `unknown`, and a person has to look.
"""

from __future__ import annotations

from holdfast.core.value import Value, replace

PROGRAM, DRIVER, MEMORY, NVLINK, BUS = "program", "driver", "memory", "nvlink", "bus"
FIRMWARE, POWER, ENGINE, UNKNOWN = "firmware", "power", "engine", "unknown"
"""What failed. program: what runs on the GPU has done something wrong, and the GPU is well."""

NONE, RESTART, WATCH, RESET, REBOOT, SERVICE = "none", "restart", "watch", "reset", "reboot", "service"
"""What helps: nothing is to be done · start the program again · look after it · reset the GPU · restart the host · have the
hardware looked at."""


class DeviceFault(Value):
    """What is wrong with one device of a node."""

    device: str  # As the driver calls it: a GPU's address on the PCI bus, or an NVSwitch with its own.
    what: str  # In words.
    xid: int = 0  # The driver's number for it; 0: it has none.


class Xid(Value):
    """One row of the catalogue."""

    number: int
    what: str
    kind: str
    action: str


ROWS: tuple[tuple[int, str, str, str], ...] = (
    (13, "graphics engine exception, most often an out-of-bounds access in a kernel", PROGRAM, RESTART),
    (31, "page fault: a program used an invalid address", PROGRAM, RESTART),
    (32, "invalid or corrupted push buffer", DRIVER, WATCH),
    (38, "the driver's firmware failed", FIRMWARE, RESET),
    (43, "the GPU stopped a program's work after an error of the program", PROGRAM, RESTART),
    (44, "graphics engine fault during a context switch", ENGINE, WATCH),
    (45, "cleanup after a program ended, most often after another error", PROGRAM, RESTART),
    (46, "the GPU stopped working", ENGINE, RESET),
    (48, "double-bit ECC error, which cannot be corrected", MEMORY, RESET),
    (54, "auxiliary power is not connected", POWER, SERVICE),
    (61, "the GPU's internal controller hit a breakpoint", FIRMWARE, RESET),
    (62, "the GPU's internal controller halted", FIRMWARE, RESET),
    (63, "a memory row is waiting for a remap, or a page was retired", MEMORY, WATCH),
    (64, "a memory row could not be remapped, or a page could not be retired", MEMORY, RESET),
    (66, "illegal access by the driver", DRIVER, WATCH),
    (68, "exception of the video decoder", ENGINE, RESTART),
    (69, "error of the graphics engine's class", PROGRAM, RESTART),
    (74, "NVLink error", NVLINK, SERVICE),
    (79, "the GPU has fallen off the bus", BUS, REBOOT),
    (80, "corrupted data was sent to the GPU", BUS, WATCH),
    (92, "many single-bit ECC errors", MEMORY, WATCH),
    (93, "too many writes to the InfoROM", FIRMWARE, WATCH),
    (94, "uncorrectable memory error, contained to one program", MEMORY, RESTART),
    (95, "uncorrectable memory error, not contained", MEMORY, RESET),
    (109, "context switch timeout", ENGINE, RESET),
    (110, "security fault", FIRMWARE, REBOOT),
    (119, "the GPU's system processor (GSP) does not answer", FIRMWARE, RESET),
    (120, "the GPU's system processor (GSP) failed", FIRMWARE, RESET),
    (121, "corrected error of the link between CPU and GPU (C2C)", NVLINK, WATCH),
    (122, "the InfoROM cannot be reached (SPI)", FIRMWARE, WATCH),
    (123, "the power controller (PMU) does not answer", FIRMWARE, RESET),
    (125, "the InfoROM is faulty", FIRMWARE, WATCH),
    (136, "NVLink training failed", NVLINK, RESET),
    (137, "NVLink: forbidden access to another GPU's memory", PROGRAM, RESTART),
    (140, "unrecovered memory error", MEMORY, RESET),
    (143, "the GPU could not be initialised", DRIVER, SERVICE),
    (144, "NVLink 5: error in its switch access", NVLINK, RESET),
    (145, "NVLink 5: error in its receiving layer", NVLINK, RESET),
    (146, "NVLink 5: error in its transport layer", NVLINK, RESET),
    (147, "NVLink 5: error in its exchange", NVLINK, RESET),
    (148, "NVLink 5: error in its power control", NVLINK, RESET),
    (149, "NVLink 5: error in its network interface", NVLINK, RESET),
    (150, "NVLink 5: error in its memory subsystem", NVLINK, RESET),
    (154, "the GPU's recovery action has changed", ENGINE, RESET),
    (155, "NVLink: an error that software detected", NVLINK, RESET),
    (156, "a part of the GPU was retired", MEMORY, WATCH),
    (157, "a part of the GPU could not be retired", MEMORY, RESET),
    (158, "fatal timeout of the GPU", ENGINE, RESET),
    (160, "a memory channel was retired", MEMORY, RESET),
    (161, "a memory channel could not be retired", MEMORY, SERVICE),
    (167, "fatal timeout on the PCI bus", BUS, REBOOT),
    (171, "DRAM error, details of Xid 48", MEMORY, RESET),
    (172, "SRAM error, details of Xid 48", MEMORY, RESET),
)
CATALOGUE = {number: Xid(number=number, what=what, kind=kind, action=action) for number, what, kind, action in ROWS}

RECOVERIES = (
    ("reboot", REBOOT),
    ("drain and reset", RESET),
    ("drain p2p", WATCH),
    ("reset", RESET),
    ("none", NONE),
)
"""Xid 154 names the action in words: the first of these that stands in the line, in lower case."""


def xid(number: int, line: str = "") -> Xid:
    """The row of a number; `line`: what the driver said beside it."""
    known = CATALOGUE.get(number) or Xid(number=number, what="not in the catalogue", kind=UNKNOWN, action=WATCH)
    if number != 154 or not line:
        return known
    said = line.lower().rpartition(" to ")[2]  # `… changed from 0x0 (None) to 0x2 (Node Reboot Required)`
    action = next((action for word, action in RECOVERIES if word in said), known.action)
    return replace(known, action=action)
