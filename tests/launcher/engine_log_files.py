"""The recorded engine logs in engine_logs/, for the tests beside this file."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.log_lines import LogLines
from launcher.root_cause import ExitInfo, RankLabel

FOLDER = Path(__file__).parent / "engine_logs"
CASES = sorted({path.name.split(".rank")[0] for path in FOLDER.glob("*.log")})
API_KEY = "fixture/key+0123456789=="


def read_bytes(case: str, rank: int) -> bytes:
    return (FOLDER / f"{case}.rank{rank}.log").read_bytes()


def split(data: bytes) -> list[str]:
    lines = LogLines()
    return lines.feed(data) + lines.finish()


def read_lines(case: str, rank: int) -> list[str]:
    return split(read_bytes(case, rank))


def label(rank: int) -> RankLabel:
    return RankLabel(node=f"spark-{'abc'[rank]}", rank=rank)


def read_logs(case: str) -> dict[RankLabel, list[str]]:
    ranks = [int(path.stem[-1]) for path in FOLDER.glob(f"{case}.rank*.log")]
    return {label(rank): read_lines(case, rank) for rank in sorted(ranks)}


def read_exits(case: str) -> dict[RankLabel, ExitInfo]:
    recorded = json.loads((FOLDER / "exits.json").read_text())[case]
    return {
        label(int(rank)): ExitInfo(code=info["code"], seen_at_s=info["seen_at_s"])
        for rank, info in recorded.items()
    }
