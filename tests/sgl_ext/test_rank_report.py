import json
from pathlib import Path

from engram.errors import TableMismatchError
from sgl_ext.errors import DriftError
from sgl_ext.hook_sets import HookSet
from sgl_ext.rank_report import describe_environment, report_path, write_rank_report, write_refusal
from sgl_ext.settings import Settings


class ServerArgs:
    """The shape of SGLang's: a flat struct."""

    __struct_fields__ = ("tp_size", "model_path", "api_key", "json_model_override_args")

    tp_size: int = 3
    model_path: str = "/models/v41"
    api_key: str | None = "hunter2"
    json_model_override_args: object = b"{}"
    _resolved_overrides = (
        ("one rule", {"tp_size": 2, "model_path": "/models/v41"}),
        ("a later", {"tp_size": 4}),
    )


def settings(report_dir: Path | None) -> Settings:
    return Settings(cpu_engine=True, report_dir=report_dir, engram_dir=None)


def write(report_dir: Path | None) -> None:
    write_rank_report(
        settings(report_dir),
        rank=2,
        hook_sets=[HookSet.CPU_V41],
        installed=[],
        server_args=ServerArgs(),
        details={"heads": 9},
    )


def test_report_of_one_rank(tmp_path: Path) -> None:
    write(tmp_path)
    report = json.loads(report_path(tmp_path, 2).read_text())
    assert report["rank"] == 2
    assert report["hook_sets"] == ["cpu_v41"]
    assert report["settings"]["cpu_engine"] is True
    assert report["settings"]["report_dir"] == str(tmp_path)
    assert report["server_args"]["tp_size"] == 3
    assert report["server_args"]["api_key"] == "(secret)"
    assert report["resolved"] == {"tp_size": 4}  # the last decision, and only what differs
    assert "hunter2" not in report_path(tmp_path, 2).read_text()
    assert "python" in report["versions"]
    assert [path.name for path in tmp_path.iterdir()] == ["rank-02.json"]  # no temporary file left


def test_environment_is_told_without_secrets() -> None:
    told = describe_environment(
        {"SGLANG_API_KEY": "hunter2", "NCCL_DEBUG": "INFO", "SPARKCTL_NODE": "a", "HOME": "/home/x"}
    )
    assert told == {"SGLANG_API_KEY": "(secret)", "NCCL_DEBUG": "INFO", "SPARKCTL_NODE": "a"}


def test_no_directory_no_report(tmp_path: Path) -> None:
    write(None)
    assert list(tmp_path.iterdir()) == []


def test_refusal_carries_message_hint_and_exit_code(tmp_path: Path) -> None:
    error = DriftError("The source must be A, got B.", hint="fix")
    write_refusal(settings(tmp_path), where="rank-01", error=error)
    refusal = json.loads((tmp_path / "refusal-rank-01.json").read_text())
    assert refusal["kind"] == "DriftError"
    assert refusal["message"] == "The source must be A, got B."
    assert (refusal["hint"], refusal["exit_code"]) == ("fix", 8)
    write_refusal(
        settings(tmp_path), where="rank-03", error=TableMismatchError("rank must be 0.", hint="pack")
    )
    refusal = json.loads((tmp_path / "refusal-rank-03.json").read_text())
    assert (refusal["message"], refusal["hint"], refusal["exit_code"]) == ("rank must be 0.", "pack", 7)
    write_refusal(settings(tmp_path), where="rank-02", error=RuntimeError("boom"))
    assert json.loads((tmp_path / "refusal-rank-02.json").read_text())["exit_code"] == 70
