import sys
from types import FrameType, FunctionType

from sgl_ext.process_role import ProcessRole, find_process_role


def frame_of(function_name: str, module_name: str) -> FrameType:
    """A frame as if SGLang's entry function had called the plugin."""
    source = f"def {function_name}(sys): return sys._getframe()"
    namespace: dict[str, object] = {"__name__": module_name}
    exec(source, namespace)
    entry = namespace[function_name]
    assert isinstance(entry, FunctionType)
    frame = entry(sys)
    assert isinstance(frame, FrameType)
    return frame


def test_roles_by_entry_function() -> None:
    scheduler = frame_of("run_scheduler_process", "sglang.srt.managers.scheduler")
    detokenizer = frame_of("run_detokenizer_process", "sglang.srt.managers.detokenizer_manager")
    assert find_process_role(scheduler) is ProcessRole.SCHEDULER
    assert find_process_role(detokenizer) is ProcessRole.DETOKENIZER


def test_the_name_alone_does_not_make_a_scheduler() -> None:
    assert find_process_role(frame_of("run_scheduler_process", "somewhere.else")) is ProcessRole.MAIN


def test_a_process_without_parent_is_main() -> None:
    assert find_process_role() is ProcessRole.MAIN
