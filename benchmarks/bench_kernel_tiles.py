"""Which tile shapes are fastest? Times a sweep of them, to choose the candidates and defaults from.

    python benchmarks/bench_kernel_tiles.py [products] [attention]

Taken as in `bench_kernels.py`; figures of products are ratios to the time their bytes need.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
from bench_kernels import (
    BF16,
    DEVICE,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PRODUCTS,
    Ceilings,
    decode_sets,
    measure_ceilings,
    prefill_step,
    randn,
    rotated,
    timed,
)  # fmt: skip

from atom.models.kernels import pack, plan_decode
from atom.models.kernels.gemv import GemvConfig, gemv
from atom.models.kernels.paged_decode import paged_decode
from atom.models.kernels.paged_prefill import paged_prefill
from atom.models.kernels.skinny_gemm import SkinnyConfig, skinny_gemm
from atom.models.kernels.work_list import build_work_list

if TYPE_CHECKING:
    from collections.abc import Iterator


def tiles_of_products(limits: Ceilings) -> None:
    for name in ("o", "gate_up", "down", "qkv"):
        n, k = PRODUCTS[name]
        weights = [w for (w,) in rotated(lambda n=n, k=k: (randn(n, k),), n * k * 2)]
        floor = n * k * 2 / limits.read
        x = randn(1, k)
        for block_n, block_k, warps in itertools.product((2, 4, 8), (512, 1024, 2048), (4, 8)):
            if block_n * block_k > 8192 or block_n * block_k < 2048:
                continue
            config = GemvConfig(block_n, block_k, warps)
            spent = timed(lambda w, x=x, c=config: gemv(x, w, config=c), [(w,) for w in weights], 20)
            print(f"{name} rows 1 {spent / floor:.3f} {config}")
        for rows in (8, 32, 64):
            x = randn(rows, k)
            spent = timed(lambda w, x=x: F.linear(x, w), [(w,) for w in weights], 20)
            print(f"{name} rows {rows} {spent / floor:.3f} torch")
            for config in _skinny_configs(rows):
                spent = timed(
                    lambda w, x=x, c=config: skinny_gemm(x, w, config=c), [(w,) for w in weights], 20
                )
                print(f"{name} rows {rows} {spent / floor:.3f} {config}", flush=True)
                if config.split_k == 1 and config.block_n == 64:
                    packed = [(pack(w, config.block_n, config.block_k),) for w in weights]
                    spent = timed(lambda w, x=x, c=config: skinny_gemm(x, w, config=c), packed, 20)
                    print(f"{name} rows {rows} {spent / floor:.3f} packed {config}", flush=True)
                    del packed


def _skinny_configs(rows: int) -> Iterator[SkinnyConfig]:
    shapes = [(16, 256, 5), (16, 512, 3), (32, 128, 6), (32, 256, 4), (64, 64, 8), (64, 128, 5), (128, 64, 5)]
    for (block_n, block_k, stages), split, first in itertools.product(shapes, (1, 2, 4), (False, True)):
        if (first and block_n < 64) or (block_n < 32 and (split > 1 or rows == 64)):
            continue
        yield SkinnyConfig(block_n, block_k, split, 4, stages, first)


def tiles_of_attention(limits: Ceilings) -> None:
    tiles = [(32, 4, 3), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 2, 3), (128, 4, 2), (128, 8, 2)]
    for seqs, context, ways in ((1, 1024, (4, 8, 16)), (32, 1024, (1, 2)), (1, 32768, (16, 32))):
        sets = decode_sets(seqs, context, BF16)
        floor = 2 * seqs * context * KV_HEADS * HEAD_DIM * 2 / limits.read
        made = plan_decode(seqs=seqs, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_seqlen_k=context, dtype=BF16)
        for splits, (block_n, warps, stages) in itertools.product(ways, tiles):
            plan = replace(made, splits=splits, block_n=block_n, num_warps=warps, num_stages=stages)
            spent = timed(lambda *a, p=plan: paged_decode(*a, scale=0.1, plan=p), sets, 20)
            print(f"decode {seqs} x {context} {spent:.2f} us {spent / floor:.2f} {plan}", flush=True)
    for block_q, block_n, warps, stages in itertools.product((16, 32), (64, 128), (4, 8), (2, 3)):
        inputs, plan = prefill_step(
            [8192], 0, block_q=block_q, block_n=block_n, num_warps=warps, num_stages=stages
        )
        plan = replace(plan, items=8192 // block_q + 2)
        work = torch.empty(plan.items, 4, device=DEVICE, dtype=torch.int32)
        starts = torch.tensor([0, 8192], device=DEVICE, dtype=torch.int32)
        build_work_list(starts, starts[1:], 8192, plan, work)
        inputs = (*inputs[:4], work, inputs[5])
        try:
            spent = timed(lambda *a, p=plan: paged_prefill(*a, p, scale=0.1), [inputs], 10)
        except triton.runtime.errors.OutOfResources as error:
            print(f"prefill {plan}: {error}")
            continue
        rate = 4 * 8192 * 8193 / 2 * HEADS * HEAD_DIM / spent / 1e6
        print(f"prefill 8192 {spent:.0f} us {rate:.0f} TFLOP/s {plan}", flush=True)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench_kernel_tiles: needs a CUDA or HIP device")
    limits = measure_ceilings()
    for name, tiles in (("products", tiles_of_products), ("attention", tiles_of_attention)):
        if not sys.argv[1:] or name in sys.argv[1:]:
            tiles(limits)


if __name__ == "__main__":
    main()
