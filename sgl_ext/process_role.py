"""Which SGLang process is this? Heavy hooks belong in the scheduler only.

SGLang calls every plugin in each of its processes: the HTTP or Engine main, the detokenizer, each scheduler
(one per rank; the model lives there). Applying a hook imports its target, so a model hook in the main process
would pull torch and the model code into it.
"""

from __future__ import annotations

import enum
import multiprocessing
import sys
from types import FrameType


class ProcessRole(enum.StrEnum):
    MAIN = "main"
    SCHEDULER = "scheduler"
    DETOKENIZER = "detokenizer"
    DP_CONTROLLER = "dp_controller"
    OTHER_CHILD = "other_child"


# SGLang's process entry functions, each of which calls load_plugins() first (0.5.23: scheduler.py,
# detokenizer_manager.py, data_parallel_controller.py under srt/managers/).
_ENTRY_FUNCTIONS = {
    "run_scheduler_process": ProcessRole.SCHEDULER,
    "run_detokenizer_process": ProcessRole.DETOKENIZER,
    "run_data_parallel_controller_process": ProcessRole.DP_CONTROLLER,
}


def find_process_role(frame: FrameType | None = None) -> ProcessRole:
    """The role, from the SGLang entry function on the call stack (innermost first).

    Arguments and titles cannot tell: children are spawned with Python's own command line, and the process
    title is set only after plugins have run.
    """
    current = frame if frame is not None else sys._getframe(1)
    walker: FrameType | None = current
    while walker is not None:
        role = _ENTRY_FUNCTIONS.get(walker.f_code.co_name)
        if role is not None and walker.f_globals.get("__name__", "").startswith("sglang."):
            return role
        walker = walker.f_back
    return ProcessRole.MAIN if multiprocessing.parent_process() is None else ProcessRole.OTHER_CHILD
