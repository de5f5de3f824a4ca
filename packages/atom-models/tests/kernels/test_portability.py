"""Every kernel compiles for NVIDIA and for AMD, which needs the compiler alone and no device."""

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atom.models.kernels import (
    embedding,
    gemv,
    paged_decode,
    paged_prefill,
    rms_norm,
    rotary_cache,
    sampling,
    silu_mul,
    skinny_gemm,
    work_list,
)
from atom.models.kernels.attention_plan import DecodePlan, PrefillPlan
from atom.models.kernels.launch import Launcher

NVIDIA, AMD = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
FP8 = {"cuda": torch.float8_e4m3fn, "hip": torch.float8_e4m3fnuz}
BF16 = torch.bfloat16
TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e4m3fnuz: "fp8e4b8",
}  # fmt: skip


def bf16(*shape):
    return torch.zeros(shape, dtype=BF16)


def ints(*shape, dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype)


def norm(_):
    rms_norm.add_rms_norm(bf16(4, 256), bf16(4, 256), bf16(256), 1e-5)


def elementwise(_):
    silu_mul.silu_mul(bf16(4, 256))
    embedding.embedding(ints(4), bf16(32, 256))


def rotary(fp8):
    cache = bf16(4, 16, 2, 64)
    for kind in (BF16, fp8):
        caches = cache.to(kind), cache.to(kind)
        rotary_cache.rotary_and_cache(
            bf16(4, 8, 64), bf16(4, 2, 64), bf16(4, 2, 64), ints(4), torch.zeros(32, 64), *caches, ints(4)
        )
        rotary_cache.write_cache(bf16(4, 2, 64), bf16(4, 2, 64), *caches, ints(4))


def decode(fp8):
    cache = bf16(4, 16, 2, 64).to(fp8)
    plan = DecodePlan(splits=2, block_n=32, num_warps=4, num_stages=2)
    tables, lengths = ints(4, 8, dtype=torch.int32), ints(4, dtype=torch.int32)
    paged_decode.paged_decode(
        bf16(4, 8, 64), cache, cache, tables, lengths, bf16(4, 8, 64), scale=0.1, plan=plan
    )


def prefill(_):
    cache = bf16(4, 16, 2, 64)
    plan = PrefillPlan(block_q=16, items=6, splits=1, block_n=32, num_warps=4, num_stages=2)
    tables, work = ints(4, 8, dtype=torch.int32), ints(6, 4, dtype=torch.int32)
    work_list.build_work_list(ints(5, dtype=torch.int32), ints(4, dtype=torch.int32), 64, plan, work)
    paged_prefill.paged_prefill(bf16(64, 8, 64), cache, cache, tables, work, bf16(64, 8, 64), plan, scale=0.1)


def sampler(_):
    logits, row = torch.zeros(4, 3000), torch.zeros(4)
    sampling.greedy(logits)
    sampling.sample(
        logits, temperature=row, top_k=row.int(), top_p=row, min_p=row, seeds=row.long(), steps=row.long()
    )


def products(_):
    around = {"norm_weight": bf16(2048), "residual": bf16(1, 32), "silu": True}
    gemv.gemv(bf16(1, 2048), bf16(64, 2048), **around)
    config = skinny_gemm.SkinnyConfig(block_n=32, block_k=64, split_k=2, num_stages=3)
    skinny_gemm.skinny_gemm(bf16(8, 256), bf16(64, 256), config=config)


@pytest.fixture
def launches(monkeypatch):
    """Write launches down instead of making them."""
    noted = []

    def note(self, grid, args, constants, num_warps=4, num_stages=3):
        noted.append((self.kernel, args, constants, {"num_warps": num_warps, "num_stages": num_stages}))

    monkeypatch.setattr(Launcher, "__call__", note)
    return noted


def compile_for(target, kernel, args, constants, options):
    if kernel.arg_names[-1] == "OVERLAP":
        constants = (*constants, target.backend == "cuda")
    signature, fixed, hints = {}, {}, {}
    for place, (parameter, value) in enumerate(zip(kernel.params, [*args, *constants], strict=True)):
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            hints[(place,)] = [["tt.divisibility", 16]]
        elif place >= len(args) or value is None or value == 1:
            signature[parameter.name], fixed[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
    source = ASTSource(kernel, signature, fixed, hints)
    return triton.compile(source, target=target, options={**options, "enable_fp_fusion": True})


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="this process interprets Triton")
@pytest.mark.parametrize("target", [NVIDIA, pytest.param(AMD, marks=pytest.mark.slow)], ids=["nvidia", "amd"])
@pytest.mark.parametrize("family", [norm, elementwise, rotary, decode, prefill, sampler, products])
def test_a_family_compiles(launches, family, target):
    family(FP8[target.backend])
    assert launches
    for kernel, args, constants, options in launches:
        compiled = compile_for(target, kernel, args, constants, options)
        assert compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
