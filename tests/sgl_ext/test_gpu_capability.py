"""What may serve V4.1: GPU and packages, refused by name; and the head counts that kernels exist for."""

import pytest

from sgl_ext.errors import CapabilityError
from sgl_ext.gpu_capability import check_capability, kernel_heads

GOOD = {"flashinfer-python": "0.7.2", "sglang-kernel": "0.4.10", "triton": "3.8.0"}


def test_a_spark_with_the_locked_packages_passes() -> None:
    check_capability((12, 1), GOOD.get)
    check_capability((12, 0), (GOOD | {"flashinfer-python": "0.10.0"}).get)
    check_capability((9, 0), {}.get)  # SGLang's own checks apply there


@pytest.mark.parametrize(
    ("capability", "change", "words"),
    [
        ((8, 9), {}, "The GPU must be sm_90, sm_10x or sm_12x for DeepSeek-V4.1, got sm_89."),
        (
            (12, 1),
            {"flashinfer-python": None},
            "flashinfer-python must be 0.7.2 or newer on sm_121, got none.",
        ),
        (
            (12, 1),
            {"flashinfer-python": "0.7.0"},
            "flashinfer-python must be 0.7.2 or newer on sm_121, got 0.7.0.",
        ),
        ((12, 0), {"sglang-kernel": "0.4.9.post1"}, "sglang-kernel must be 0.4.10 or newer on sm_120"),
    ],
)
def test_what_cannot_serve_is_refused_by_name(
    capability: tuple[int, int], change: dict[str, str | None], words: str
) -> None:
    with pytest.raises(CapabilityError) as refused:
        check_capability(capability, (GOOD | change).get)  # type: ignore[arg-type]
    assert refused.value.message.startswith(words) and refused.value.hint


def test_heads_of_every_layout() -> None:
    assert [kernel_heads(heads) for heads in (64, 32, 24, 16, 72)] == [64, 32, 32, 16, 128]
    with pytest.raises(CapabilityError, match="at most 128 query heads"):
        kernel_heads(192)
