"""Shapes of published models, and the matmuls they imply for one GPU at a tensor-parallel size.

Pure Python: neither torch nor the kernels. Leaves the choice of sizes (rows, lengths, batches) to `bench.suites`,
counting to `kernels.work`, and attention to `kernels.attention_layers` and, with a latent, to
`kernels.latent_attention`. Routers and experts are not listed yet: they need ops of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernels.spec import DECODE_ROWS, Workload

KV_HEADS = "KV heads"
LM_HEAD_ROWS = 512
"""Most rows an lm_head is listed for: only the last token of each sequence gets logits, so M counts sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model's shapes; a count of 0 means that it has no such thing.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        kv_heads: with MLA, the heads its latent is expanded to (prefill); decode shares one latent.
        head_dim: width of a query-key head; with MLA, nope + rope.
        v_head_dim: width of a value head; `head_dim` when not given.
        intermediate: width of the dense MLP, 0 where every layer has experts.
        dense_layers: layers with a dense MLP: all, unless there are experts.
        experts_active: routed experts a token visits; `shared_experts` come on top.
        window: keys a windowed layer sees; `window_layers` of the layers are windowed.
        sinks, softcap: whether query heads have attention sinks, and the cap on attention's logits.
        q_lora_rank, kv_lora_rank, rope_head_dim: MLA's ranks, and the part of `head_dim` that is rotated.
        tied_head: the lm_head is the embedding table.
        qk_norm: queries and keys are normalised head by head.
        parameters: exact count of the text model.
        active_parameters: `parameters` (the default) less the routed experts that a token does not visit. Embedding
            included, as Mixtral, Qwen3 and DeepSeek count; the gpt-oss card leaves it out (5.13e9).
        source: where the shapes come from.
    """

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    intermediate: int = 0
    dense_layers: int = 0
    experts: int = 0
    experts_active: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    vocabulary: int
    tied_head: bool = False
    qk_norm: bool = False
    window: int = 0
    window_layers: int = 0
    sinks: bool = False
    softcap: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    parameters: int
    active_parameters: int = 0
    source: str

    def __post_init__(self) -> None:
        if not self.v_head_dim:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        if not self.experts:
            object.__setattr__(self, "dense_layers", self.layers)
        if not self.active_parameters:
            object.__setattr__(self, "active_parameters", self.parameters)


# fmt: off
MODELS: tuple[Model, ...] = (
    Model(name="llama-3.1-8b", layers=32, hidden=4096, q_heads=32, kv_heads=8, head_dim=128,
          intermediate=14336, vocabulary=128256, parameters=8_030_261_248,
          source="Hugging Face config meta-llama/Meta-Llama-3.1-8B"),
    Model(name="llama-3.1-70b", layers=80, hidden=8192, q_heads=64, kv_heads=8, head_dim=128,
          intermediate=28672, vocabulary=128256, parameters=70_553_706_496,
          source="Hugging Face config meta-llama/Meta-Llama-3.1-70B"),
    Model(name="llama-3.1-405b", layers=126, hidden=16384, q_heads=128, kv_heads=8, head_dim=128,
          intermediate=53248, vocabulary=128256, parameters=405_853_388_800,
          source="Hugging Face config meta-llama/Meta-Llama-3.1-405B"),
    Model(name="qwen3-8b", layers=36, hidden=4096, q_heads=32, kv_heads=8, head_dim=128,
          intermediate=12288, vocabulary=151936, qk_norm=True, parameters=8_190_735_360,
          source="Hugging Face config Qwen/Qwen3-8B"),
    Model(name="qwen3-32b", layers=64, hidden=5120, q_heads=64, kv_heads=8, head_dim=128,
          intermediate=25600, vocabulary=151936, qk_norm=True, parameters=32_762_123_264,
          source="Hugging Face config Qwen/Qwen3-32B"),
    Model(name="qwen3-30b-a3b", layers=48, hidden=2048, q_heads=32, kv_heads=4, head_dim=128,
          experts=128, experts_active=8, expert_intermediate=768, vocabulary=151936, qk_norm=True,
          parameters=30_532_122_624, active_parameters=3_353_032_704,
          source="Hugging Face config Qwen/Qwen3-30B-A3B"),
    Model(name="qwen3-235b-a22b", layers=94, hidden=4096, q_heads=64, kv_heads=4, head_dim=128,
          experts=128, experts_active=8, expert_intermediate=1536, vocabulary=151936, qk_norm=True,
          parameters=235_093_634_560, active_parameters=22_190_763_520,
          source="Hugging Face config Qwen/Qwen3-235B-A22B"),
    Model(name="mistral-7b", layers=32, hidden=4096, q_heads=32, kv_heads=8, head_dim=128,
          intermediate=14336, vocabulary=32000, window=4096, window_layers=32, parameters=7_241_732_096,
          source="Hugging Face config mistralai/Mistral-7B-v0.1"),
    Model(name="mixtral-8x7b", layers=32, hidden=4096, q_heads=32, kv_heads=8, head_dim=128,
          experts=8, experts_active=2, expert_intermediate=14336, vocabulary=32000,
          parameters=46_702_792_704, active_parameters=12_879_925_248,
          source="Hugging Face config mistralai/Mixtral-8x7B-v0.1"),
    Model(name="gemma-2-27b", layers=46, hidden=4608, q_heads=32, kv_heads=16, head_dim=128,
          intermediate=36864, vocabulary=256000, tied_head=True, window=4096, window_layers=23, softcap=50,
          parameters=27_227_128_320, source="Hugging Face config google/gemma-2-27b"),
    Model(name="gemma-3-27b", layers=62, hidden=5376, q_heads=32, kv_heads=16, head_dim=128,
          intermediate=21504, vocabulary=262208, tied_head=True, qk_norm=True, window=1024, window_layers=52,
          parameters=27_009_346_304,  # with the vision tower: 27,432,406,640
          source="Hugging Face config google/gemma-3-27b-pt, text model"),
    Model(name="deepseek-v3", layers=61, hidden=7168, q_heads=128, kv_heads=128, head_dim=192, v_head_dim=128,
          intermediate=18432, dense_layers=3, vocabulary=129280,
          experts=256, experts_active=8, shared_experts=1, expert_intermediate=2048, q_lora_rank=1536,
          kv_lora_rank=512, rope_head_dim=64, parameters=671_026_419_200, active_parameters=37_552_297_472,
          source="Hugging Face config deepseek-ai/DeepSeek-V3, without the multi-token prediction layer"),
    Model(name="gpt-oss-120b", layers=36, hidden=2880, q_heads=64, kv_heads=8, head_dim=64,
          experts=128, experts_active=4, expert_intermediate=2880, vocabulary=201088, window=128, window_layers=18,
          sinks=True, parameters=116_829_156_672, active_parameters=5_711_982_912,
          source="Hugging Face config openai/gpt-oss-120b"),
)
# fmt: on


def model_named(name: str) -> Model:
    """The model of that name. Raises ValueError with the known names."""
    for model in MODELS:
        if model.name == name:
            return model
    raise ValueError(f"unknown model {name!r}; known: {', '.join(m.name for m in MODELS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one GPU of a tensor-parallel group holds; KV heads fewer than the GPUs are replicated."""

    q_heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int


def sharded(model: Model, tp: int) -> Shard:
    """One GPU's part of `model` under tensor parallelism.

    Raises:
        ValueError: `tp` does not divide the query heads or a width, or neither divides the KV heads nor is a
            multiple of them; the message lists the sizes that do.
    """
    if tp < 1:
        raise ValueError(f"tp must be at least 1, got {tp}")
    for what, size in _split_sizes(model):
        if not _splits(what, size, tp):
            allowed = [t for t in range(1, model.q_heads + 1) if model.q_heads % t == 0 and _splits(what, size, t)]
            raise ValueError(
                f"{model.name}: tp {tp} does not divide {size} {what}"
                f"{' and is no multiple of them' if what == KV_HEADS else ''}; "
                f"these sizes fit: {', '.join(map(str, allowed))}"
            )
    return Shard(
        q_heads=model.q_heads // tp,
        kv_heads=max(1, model.kv_heads // tp),
        intermediate=model.intermediate // tp,
        vocabulary=model.vocabulary // tp,
    )


def tp_sizes(model: Model) -> tuple[int, ...]:
    """Every tensor-parallel size that `sharded` accepts, ascending."""
    sizes = range(1, model.q_heads + 1)
    return tuple(tp for tp in sizes if all(_splits(what, size, tp) for what, size in _split_sizes(model)))


def _split_sizes(model: Model) -> tuple[tuple[str, int], ...]:
    return (
        ("query heads", model.q_heads),
        (KV_HEADS, model.kv_heads),
        ("MLP columns", model.intermediate),
        ("expert columns", model.expert_intermediate),
        ("vocabulary entries", model.vocabulary),
    )


def _splits(what: str, size: int, tp: int) -> bool:
    return size % tp == 0 or (what == KV_HEADS and tp % size == 0)


class Projection(NamedTuple):
    """A dense matmul of a layer, or the head: activations [M, K] times weights [K, N]."""

    name: str
    n: int
    k: int


def projections(model: Model, tp: int) -> list[Projection]:
    """The dense matmuls one GPU runs, without router and experts. Raises ValueError as `sharded` does."""
    shard = sharded(model, tp)
    matmuls = [
        *(_mla_projections(model, shard) if model.kv_lora_rank else [_qkv_projection(model, shard)]),
        Projection("o_proj", model.hidden, shard.q_heads * model.v_head_dim),
    ]
    if shard.intermediate:
        matmuls.append(Projection("gate_up_proj", 2 * shard.intermediate, model.hidden))
        matmuls.append(Projection("down_proj", model.hidden, shard.intermediate))
    return [*matmuls, Projection("lm_head", shard.vocabulary, model.hidden)]


def _qkv_projection(model: Model, shard: Shard) -> Projection:
    width = shard.q_heads * model.head_dim + shard.kv_heads * (model.head_dim + model.v_head_dim)
    return Projection("qkv_proj", width, model.hidden)


def _mla_projections(model: Model, shard: Shard) -> list[Projection]:
    # The compressions to the latents serve all heads, so every GPU runs them whole.
    latents = model.q_lora_rank + model.kv_lora_rank + model.rope_head_dim
    expanded_width = model.head_dim - model.rope_head_dim + model.v_head_dim
    return [
        Projection("qkv_a_proj", latents, model.hidden),
        Projection("q_b_proj", shard.q_heads * model.head_dim, model.q_lora_rank),
        Projection("kv_b_proj", shard.q_heads * expanded_width, model.kv_lora_rank),
    ]


def matmul_workloads(
    model: Model, tp: int, rows: Sequence[int], dtype: str, only: tuple[str, ...] = ()
) -> dict[str, list[Workload]]:
    """The model's dense matmuls at each M of `rows`: op "matmul" above `DECODE_ROWS` rows, "matmul_decode" up to it.

    Args:
        only: names of projections to keep; all when empty.
    """
    by_op: dict[str, list[Workload]] = {"matmul": [], "matmul_decode": []}
    for name, n, k in projections(model, tp):
        for m in rows:
            decode = m <= DECODE_ROWS
            # Decode absorbs kv_b_proj into products per head, which no dense matmul stands for.
            absorbed = name == "kv_b_proj" and decode
            if (only and name not in only) or absorbed or (name == "lm_head" and m > LM_HEAD_ROWS):
                continue
            technique = "lm_head" if name == "lm_head" else "tensor_parallel" if tp > 1 else "dense"
            workload = Workload(
                axes={"M": m, "N": n, "K": k},
                dtype=dtype,
                phase="decode" if decode else "prefill",
                technique=technique,
                source=(f"{model.name}: {name}, tp {tp}",),
            )
            by_op["matmul_decode" if decode else "matmul"].append(workload)
    return by_op
