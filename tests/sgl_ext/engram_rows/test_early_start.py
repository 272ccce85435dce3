"""Reads of a verify that start before its forward: taken once, by the forward they were started for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")
pytest.importorskip("sglang")

from engram.checkpoint import open_checkpoint  # noqa: E402
from sgl_ext.errors import EngramReadError  # noqa: E402
from sgl_ext.hook_sets import HOOK_MODULES, choose_hook_sets  # noqa: E402
from sgl_ext.settings import Settings  # noqa: E402
from sgl_ext.stand_ins import add_stand_ins  # noqa: E402
from tests.sgl_ext.engram_rows.conftest import LAYERS  # noqa: E402
from tests.sgl_ext.engram_rows.test_stored_embedding import make_layers  # noqa: E402

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]  # of SGLang's imports


class Verify:
    """One verify of two blocks of 6 tokens, hashed by SGLang's own hasher under our hook."""

    def __init__(self, hasher: Any, seed: int) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        from sgl_ext.engram.early_start import VerifyInputs

        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, 900, (12,), generator=generator)
        self.inputs = VerifyInputs(
            forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=torch.tensor([1, 3]),
            positions=torch.arange(12) + 40,
            spec_info=SimpleNamespace(draft_token_num=6, ragged_verify_layout=None),
        )
        self.hasher = hasher

    def hash(self, ids: Any = None) -> Any:
        """What the model's forward does; it may hash a copy of the ids."""
        from sgl_ext.hooks.engram_hasher import hash_and_start

        ids = self.ids.clone() if ids is None else ids
        return hash_and_start(type(self.hasher).forward, self.hasher, ids, self.inputs)


@pytest.fixture
def parts(
    model_dir: Path, row_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any, list[Any]]]:
    """(service, hasher, Engram layers) of one rank on the CPU."""
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    add_stand_ins()
    from sglang.srt.layers.engram import EngramHasher

    from sgl_ext.engram.row_service import get_row_service, reset_row_service

    layers = [embed for embed, _ in make_layers(model_dir)]
    checkpoint = open_checkpoint(model_dir)
    hasher = make_hasher(EngramHasher, checkpoint)
    yield get_row_service(), hasher, layers
    reset_row_service()


def make_hasher(hasher_class: type, checkpoint: Any) -> Any:
    """SGLang's hasher of this model's shape, without a tokenizer: each token is a class of its own."""
    layout = checkpoint.layout
    hasher = hasher_class.__new__(hasher_class)
    torch.nn.Module.__init__(hasher)
    per_layer = [[list(order) for order in _by_order(layer, layout)] for layer in layout.primes]
    flat = [[prime for order in layer for prime in order] for layer in per_layer]
    hasher.max_ngram_size = layout.window_tokens
    hasher.pad_id, hasher.image_token_id = 2, None
    hasher.token_map = torch.arange(2000)
    generator = torch.Generator().manual_seed(5)
    hasher.multipliers = torch.randint(1, 1 << 40, (len(LAYERS), hasher.max_ngram_size), generator=generator)
    hasher.primes = torch.tensor(per_layer)
    hasher.offsets = torch.tensor([[sum(row[:place]) for place in range(len(row))] for row in flat])
    hasher.init_history(8, "cpu")
    return hasher


def _by_order(flat: Any, layout: Any) -> list[Any]:
    orders, heads = layout.window_tokens - 1, layout.num_heads
    return [flat[order * heads : (order + 1) * heads] for order in range(orders)]


def count(service: Any) -> tuple[int, int]:
    counters = service.store.counters()
    return counters.requests, counters.rows


def begin(service: Any, verify: Verify) -> None:
    service.early_start.begin(lambda ids, inputs: verify.hash(ids), verify.ids, verify.inputs)


def test_the_forward_gets_what_was_begun_and_reads_nothing_again(parts: tuple[Any, Any, list[Any]]) -> None:
    service, hasher, layers = parts
    verify = Verify(hasher, 1)
    wanted_ids = verify.hash()
    wanted = [embed(wanted_ids[:, layer]) for layer, embed in enumerate(layers)]
    start = count(service)
    begin(service, verify)
    begun = count(service)
    assert begun == (start[0] + len(LAYERS), start[1] + len(LAYERS) * 12 * 24)
    ids = verify.hash()
    assert torch.equal(ids, wanted_ids)
    rows = [embed(ids[:, layer]) for layer, embed in enumerate(layers)]
    assert all(torch.equal(one, other) for one, other in zip(rows, wanted, strict=True))
    assert count(service) == begun
    # The same forward once more has nothing left: it hashes and reads for itself.
    assert torch.equal(verify.hash(), wanted_ids)
    assert torch.equal(layers[0](verify.hash()[:, 0]), wanted[0]) and count(service) != begun


def test_a_step_that_never_came_leaves_nothing_to_the_next(parts: tuple[Any, Any, list[Any]]) -> None:
    service, hasher, layers = parts
    gone, verify = Verify(hasher, 1), Verify(hasher, 2)
    wanted_ids = verify.hash()
    begin(service, gone)
    ids = verify.hash()  # a forward that was not begun
    assert torch.equal(ids, wanted_ids)
    rows = layers[1](ids[:, 1])
    begin(service, verify)
    assert service.early_start.lost == 1
    assert torch.equal(layers[1](verify.hash()[:, 1]), rows)


def test_a_forward_of_other_tokens_is_refused_by_name(parts: tuple[Any, Any, list[Any]]) -> None:
    service, hasher, _ = parts
    verify = Verify(hasher, 1)
    begin(service, verify)
    with pytest.raises(EngramReadError, match=r"must hash the 12 tokens whose Engram rows .*, got 11"):
        verify.hash(verify.ids[:11])


def test_a_failed_early_read_ends_the_step_at_its_layer(parts: tuple[Any, Any, list[Any]]) -> None:
    """Not where it was started: the other ranks wait at the layer."""
    service, hasher, layers = parts
    verify = Verify(hasher, 1)
    service.store.close()
    begin(service, verify)
    ids = verify.hash()
    with pytest.raises(EngramReadError, match=f"rows of layer {LAYERS[0]} must be read"):
        layers[0](ids[:, 0])


def test_a_verify_graph_of_the_target_begins_with_the_reads(parts: tuple[Any, Any, list[Any]]) -> None:
    """The hook on a graph's head, called as its warm-ups are."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sgl_ext.hooks.engram_verify_graph import begin_at_head, find_late_graphs

    service, hasher, layers = parts
    verify = Verify(hasher, 3)
    wanted = layers[0](verify.hash()[:, 0])
    start = count(service)

    def head(
        *, mode: Any = ForwardMode.TARGET_VERIFY, is_draft: bool = False, has_engram: bool = True
    ) -> None:
        manager = SimpleNamespace(engram_hasher=(lambda ids, batch: verify.hash(ids)) if has_engram else None)
        model_runner = SimpleNamespace(is_draft_worker=is_draft, ngram_embedding_manager=manager)
        fields = {
            name: getattr(verify.inputs, name) for name in ("req_pool_indices", "positions", "spec_info")
        }
        batch = SimpleNamespace(input_ids=verify.ids, forward_mode=mode, **fields)
        begin_at_head(SimpleNamespace(model_runner=model_runner), None, batch)

    head(is_draft=True)
    head(mode=ForwardMode.DECODE)
    head(has_engram=False)
    assert count(service) == start
    head()
    begun = count(service)
    assert begun[0] == start[0] + len(LAYERS)
    assert torch.equal(layers[0](verify.hash()[:, 0]), wanted) and count(service) == begun
    eager = SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(decode_cuda_graph_runner=None))
    )
    assert find_late_graphs(eager) is None
    service.early_start.graphs_at_hash = 2
    assert find_late_graphs(eager) == (
        "2 verify graphs start their reads with the hash, 0 reads were started for no forward"
    )


def test_nothing_hashes_a_verify_before_the_hook_that_starts_reads(tmp_path: Path) -> None:
    """SGLang calls the last of several hooks first, and the one of ragged blocks passes nothing on."""
    settings = Settings(cpu_engine=False, report_dir=None, engram_dir=tmp_path)
    config = {"model_type": "deepseek_v41", "text_config": {"o_groups": 8}}
    chosen = choose_hook_sets(replace(settings, spec=True), config, 4, "DSPARK")
    modules = [module for hook_set in chosen for module in HOOK_MODULES[hook_set]]
    assert modules.index("engram_hasher") > modules.index("engram_ragged_hash")


def test_a_capture_that_did_not_start_its_reads_is_sent_to_a_backend_that_starts() -> None:
    """Breakable decode graphs were the hint once; stock SGLang ends at their capture with this model."""
    from sgl_ext.engram.breakable_read import read_between_segments

    with pytest.raises(EngramReadError) as caught:
        read_between_segments(None, torch.zeros(1), torch.zeros(1))
    assert "--cuda-graph-backend-decode full" in str(caught.value.hint)
    assert "breakable" not in str(caught.value.hint)
    assert "SPARKCTL_ENGRAM_MAX_STEP_TOKENS" in str(caught.value.hint)
