"""The GPU kernels in Triton's interpreter: column order, padding, signs of zero, failed ranks; no GPU."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")
pytest.importorskip("triton", reason="needs Triton, which comes with the engine: make up installs it")

from sgl_ext.engram.dequantise import dequantise  # noqa: E402
from sgl_ext.engram.payload import PayloadLayout  # noqa: E402
from tests.sgl_ext.run_interpreted import run_interpreted  # noqa: E402


def random_payloads(layout: PayloadLayout, tp: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tp)
    raw = torch.randint(0, 256, (tp, layout.total_bytes), dtype=torch.uint8, generator=generator)
    weights = raw[:, : layout.scale_offset]
    weights[(weights & 0x7F) == 0x7F] = 0x80  # no NaN, and more of -0
    # Finite and normal in bf16: the interpreter rounds denormals in its own way.
    raw[:, layout.scale_offset : layout.status_offset] = (
        raw[:, layout.scale_offset : layout.status_offset] % 100 + 60
    )
    raw[:, layout.status_offset :] = 0
    return raw.reshape(-1)


def check_dequantise(tp: int, dim: int) -> None:
    from sgl_ext.engram.gpu_kernels import dequantise_gathered

    layout = PayloadLayout(num_ids=5 * 24 // tp, dim=dim)
    payloads = random_payloads(layout, tp)
    expected, statuses = dequantise(payloads, layout, tp=tp, num_columns=24)
    assert statuses == [0] * tp
    error = torch.zeros(1, dtype=torch.int64)
    out = torch.full((7, 24, dim), 99.0, dtype=torch.bfloat16)  # two rows of padding
    dequantise_gathered(payloads, out, layout, tp=tp, num_columns=24, error_address=error.data_ptr())
    assert torch.equal(out[:5].view(torch.int16), expected.view(torch.int16))
    assert out[5:].eq(0).all()
    assert error.item() == 0
    failed = tp - 1
    start = failed * layout.total_bytes + layout.status_offset
    payloads[start : start + 8].view(torch.int64)[0] = -5
    dequantise_gathered(payloads, out, layout, tp=tp, num_columns=24, error_address=error.data_ptr())
    assert error.item() == -5
    assert out[:, failed::tp].isnan().all()


def check_export(tp: int, rank: int) -> None:
    from sgl_ext.engram.gpu_kernels import export_ids

    ids = torch.arange(11 * 2 * 24).view(11, 2, 24) * 1_000_003
    out = torch.zeros(2, 400, dtype=torch.int64)
    export_ids(ids, out, rank=rank, tp=tp)
    own = 24 // tp
    for layer in range(2):
        assert torch.equal(out[layer, : 11 * own].view(11, own), ids[:, layer, rank::tp])
        assert out[layer, 11 * own :].eq(0).all()


def check_all() -> None:
    for tp in (1, 2, 3, 4):
        for dim in (64, 256):
            check_dequantise(tp, dim)
    for tp, rank in ((1, 0), (2, 1), (3, 2), (4, 1)):
        check_export(tp, rank)


@pytest.mark.sglang
@pytest.mark.slow
def test_kernels_do_what_the_plain_form_does() -> None:
    """One process for all: importing is slow."""
    run_interpreted(__name__)
