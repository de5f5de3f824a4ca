"""Files that lie: one clear error line, at once, without memory, whatever they claim."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom.models.checkpoint import open_checkpoint
from atom.models.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HUGE = 2**63 - 1
SECONDS_ALLOWED = 1.0
GROWTH_ALLOWED = 50 * 1024 * 1024

# Runs in a process of its own, so that its memory is its own.
PROBE = """
import json, resource, sys, time
from pathlib import Path
from atom.models.checkpoint import open_checkpoint
import atom.models.checkpoint.gguf, gguf.quants, safetensors.torch
from atom.models.errors import CheckpointError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

for path in Path(sys.argv[1]).iterdir():
    before, began = peak(), time.perf_counter()
    try:
        checkpoint = open_checkpoint(path)
        kind, message = "opened", repr(checkpoint)
    except CheckpointError as error:
        kind, message = type(error).__name__, str(error)
    except BaseException as error:
        kind, message = "not ours: " + type(error).__name__, str(error)
    seconds = time.perf_counter() - began
    print(json.dumps([path.name, kind, message, seconds, peak() - before]))
"""


def gguf_files(new: Any) -> Iterator[tuple[str, bytes, str]]:
    """File name, bytes, and what the error says beside the file's name."""

    def llama() -> Any:
        return new().string("general.architecture", "llama")

    yield "product", llama().tensor("t", [HUGE, 2, 1, 1]).build(), "tensor 't' ends at byte 7378697629483820"
    yield "product64", llama().tensor("t", [2**32, 2**32]).build(), "tensor 't' ends at byte"
    yield "product65", llama().tensor("t", [2**62, 4, 4, 4]).build(), "tensor 't' ends at byte"
    for count in ("tensor_count", "pair_count"):
        file = llama()
        setattr(file, count, 2**60)
        yield count, file.build(), f"claims {2**60}"
    yield (
        "long_key",
        new().build()[:16] + struct.pack("<Q", 1) + struct.pack("<Q", 2**60) + b"key",
        "metadata entr",
    )
    yield (
        "long_string",
        llama().pair("k", 8, struct.pack("<Q", 2**62) + b"x").build(),
        "metadata value 'k' needs",
    )
    yield (
        "long_name",
        llama()
        .tensor("t", [1])
        .build()
        .replace(struct.pack("<Q", 1) + b"t", struct.pack("<Q", 2**61) + b"t"),
        "tensor table",
    )
    yield (
        "long_array",
        llama().pair("k", 9, struct.pack("<IQ", 0, 2**60)).build(),
        f"claims {2**60} elements in metadata value 'k'",
    )
    yield "long_texts", llama().pair("k", 9, struct.pack("<IQ", 8, 2**60)).build(), f"claims {2**60} elements"
    for alignment in (0, 3, 2**31, 2**17):
        file = llama().uint32("general.alignment", alignment).tensor("t", [8])
        file.data = bytes(64)
        yield (
            f"alignment{alignment}",
            file.build(),
            f"general.alignment is {alignment}, expected a power of two",
        )
    yield "alignment_text", llama().string("general.alignment", "32").build(), "general.alignment is '32'"
    yield "rank9", llama().tensor("t", [1] * 9).build(), "tensor 't' has 9 dimensions"
    yield "rank0", llama().tensor("t", []).build(), "tensor 't' has 0 dimensions"
    yield (
        "rank_huge",
        llama()
        .tensor("t", [1])
        .build()
        .replace(b"t" + struct.pack("<I", 1), b"t" + struct.pack("<I", 2**32 - 1)),
        "tensor 't' has 4294967295 dimensions",
    )
    yield "empty_tensor", llama().tensor("t", [0, 4]).build(), "tensor 't' has dimensions [0, 4]"
    yield "half_block", llama().tensor("t", [40, 2], type_=8).build(), "rows of Q8_0 are whole blocks of 32"
    for name, first, second, fault in (
        ("overlap", 0, 32, "tensor 'b' overlaps or precedes tensor 'a'"),
        ("same_place", 0, 0, "tensor 'b' overlaps or precedes tensor 'a'"),
        ("backwards", 64, 0, "tensor 'b' overlaps or precedes tensor 'a'"),
        ("past_end", 0, 4096, "tensor 'b' ends at byte"),
        ("far_past_end", 0, 2**64 - 32, "tensor 'b' ends at byte"),
        ("crooked", 0, 65, "tensor 'b' begins at data offset 65, no multiple of 32"),
    ):
        file = llama().tensor("a", [16], offset=first).tensor("b", [16], offset=second)
        file.data = bytes(128)
        yield name, file.build(), fault
    file = llama().tensor("t", [8]).tensor("t", [8], offset=32)
    file.data = bytes(64)
    yield "twice", file.build(), "tensor 't' is given twice"
    yield (
        "key_twice",
        llama().string("general.architecture", "llama").build(),
        "'general.architecture' is given twice",
    )
    for number in (4, 5, 77, 2**32 - 1):
        yield (
            f"type{number}",
            llama().tensor("t", [32], type_=number).build(),
            f"tensor 't' has number format number {number}; supported are",
        )
    yield "value_type", llama().pair("k", 13, b"").build(), "metadata value 'k' has unknown value type 13"
    yield (
        "element_type",
        llama().pair("k", 9, struct.pack("<IQ", 99, 1) + bytes(16)).build(),
        "unknown value type 99",
    )
    yield (
        "nested",
        llama().pair("k", 9, struct.pack("<IQ", 9, 1) * 10_000).build(),
        "metadata value 'k' is an array nested more than 4 deep",
    )
    yield (
        "path_name",
        llama().tensor("../../etc/passwd", [8]).build(),
        "tensor name '../../etc/passwd' looks like a path",
    )
    yield "nul_name", llama().tensor("a\0b", [8]).build(), "tensor name 'a\\x00b' holds a control character"
    yield "not_text_name", llama().tensor(b"\xff\xfe", [8]).build(), "not UTF-8 text"
    yield (
        "nul_key",
        new().string("a\0b", "x").build(),
        "metadata key name 'a\\x00b' holds a control character",
    )
    yield "empty", b"", "the file is empty"
    yield "magic", b"GGML" + bytes(100), "does not begin with 'GGUF'"
    yield "only_magic", b"GGUF", "needs 4 bytes"
    yield "no_tensors", llama().build(), "llama.embedding_length is missing"


def safetensors_files(build: Callable[..., bytes]) -> Iterator[tuple[str, bytes, str]]:
    def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    def file(data: int = 8, **tensors: Any) -> bytes:
        return build(json.dumps(tensors), bytes(data))

    yield "product", file(t=entry([HUGE, 2, 1, 1])), "tensor 't' of shape [9223372036854775807, 2, 1, 1]"
    yield "product_wraps_to_size", file(t=entry([2**62, 2, 2], (0, 0))), "tensor 't' of shape"
    yield "negative", file(t=entry([-2, -1])), "tensor 't' has shape [-2, -1]"
    yield "fraction", file(t=entry([2.0])), "tensor 't' has shape [2.0]"
    yield "truth", file(t=entry([True, 2])), "tensor 't' has shape [True, 2]"
    yield "header_length", build("{}", length=2**60), f"header claims {2**60} bytes"
    yield "header_length_max", build("{}", length=2**64 - 1), "header claims 18446744073709551615 bytes"
    yield "header_just_past_end", build("{}", length=3), "header claims 3 bytes"
    yield "rank9", file(4, t=entry([1] * 9, (0, 4))), "tensor 't' has 9 dimensions"
    yield "overlap", file(12, a=entry(), b=entry(offsets=(4, 12))), "tensor 'b' overlaps tensor 'a'"
    yield "same_place", file(8, a=entry(), b=entry()), "overlaps"
    yield "backwards", file(t=entry(offsets=(8, 0))), "tensor 't' lies at bytes 8 to 0 of 8"
    yield "past_end", file(t=entry([4], (0, 16))), "tensor 't' lies at bytes 0 to 16 of 8"
    yield "far_past_end", file(t=entry([2], (2**63, 2**63 + 8))), "tensor 't' lies at bytes"
    yield "gap", file(16, a=entry(), b=entry([1], (12, 16))), "tensor 'b' leaves a gap after tensor 'a'"
    yield "rest", file(16, a=entry()), "8 bytes after tensor 'a' belong to no tensor"
    twice = f'{{"t": {json.dumps(entry())}, "t": {json.dumps(entry(offsets=(8, 16)))}}}'
    yield "twice", build(twice, bytes(16)), "'t' is given twice"
    yield "type", file(t=entry(dtype="Q4_0")), "tensor 't' has number format 'Q4_0'; supported are F64"
    yield "type_list", file(t=entry(dtype=["F32"])), "tensor 't' has number format ['F32']"
    yield "nested", build('{"t": ' + "[" * 10_000 + "]" * 10_000 + "}"), "nested too deep"
    yield (
        "nested_shape",
        build('{"t": {"dtype": "F32", "shape": ' + "[" * 10_000 + "]" * 10_000 + "}}"),
        "nested too deep",
    )
    yield "path_name", file(**{"../../etc/passwd": entry()}), "looks like a path"
    yield "nul_name", file(**{"a\0b": entry()}), "control character"
    yield (
        "no_offsets",
        build('{"t": {"dtype": "F32", "shape": [2]}}', bytes(8)),
        "tensor 't' has data offsets None",
    )
    yield "three_offsets", file(t=entry(offsets=(0, 4, 8))), "tensor 't' has data offsets [0, 4, 8]"
    yield "no_object", file(t=[1]), "tensor 't' is described by [1], not an object"
    yield "list", build("[]"), "holds a JSON list"
    yield "not_json", build("not json"), "header is not valid JSON"
    yield "not_text", build(b'{"\xff": 1}'), "not UTF-8 text"
    yield "digits", build('{"t": ' + "9" * 5000 + "}"), "cannot be read"
    yield "empty", b"", "0 bytes are too few"
    yield "short", b"\1\0\0", "3 bytes are too few"


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole, if tiny, GGUF file with a vocabulary."""
    import gguf
    import numpy as np

    path = tmp_path_factory.mktemp("small") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", np.ones((3, 32), dtype=np.float32))
    writer.add_tensor("blk.0.attn_k.weight", np.ones((16, 32), dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 1, 1, 1, 2, 4, 4], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def small_safetensors() -> bytes:
    """A whole, if tiny, safetensors file."""
    import safetensors.torch
    import torch

    tensors = {f"layer.{i}.weight": torch.ones(3, i + 1) for i in range(4)}
    raw: bytes = safetensors.torch.save(tensors, metadata={"format": "pt"})
    return raw


def cut_at_random(raw: bytes) -> dict[str, bytes]:
    """`raw` cut at 100 places: its first ten bytes, and anywhere."""
    places = {*range(10), *random.Random(0).sample(range(10, len(raw)), 90)}
    return {f"cut{place}": raw[:place] for place in places}


Outcome = tuple[str, str, float, int]


@pytest.fixture(scope="module")
def outcomes(
    gguf_bytes: Any,
    safetensors_bytes: Callable[..., bytes],
    small_gguf: bytes,
    small_safetensors: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Outcome]:
    """What opening each file did, in one fresh process: error class, message, seconds, bytes of growth."""
    root = tmp_path_factory.mktemp("hostile")
    gguf = {name: raw for name, raw, _ in gguf_files(gguf_bytes)} | cut_at_random(small_gguf)
    for name, raw in {**gguf, "whole": small_gguf}.items():
        (root / f"{name}.gguf").write_bytes(raw)
    safetensors = {name: raw for name, raw, _ in safetensors_files(safetensors_bytes)}
    safetensors |= cut_at_random(small_safetensors)
    for name, raw in {**safetensors, "whole": small_safetensors}.items():
        folder = root / name
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (folder / "model.safetensors").write_bytes(raw)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(root)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return {name: (kind, message, seconds, growth) for name, kind, message, seconds, growth in rows}


def check(name: str, outcome: Outcome, expected: str) -> None:
    kind, message, seconds, growth = outcome
    assert kind in ("CorruptCheckpointError", "UnsupportedCheckpointError"), (name, kind, message)
    assert expected in message, (name, message)
    assert name in message
    assert message.isprintable(), (name, message)  # so it is one line
    assert len(message) < 600
    assert seconds < SECONDS_ALLOWED, (name, seconds)
    assert growth < GROWTH_ALLOWED, (name, growth)


def test_the_files_open_as_long_as_nobody_touches_them(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["whole"][0] == outcomes["whole.gguf"][0] == "opened"


def test_gguf_files_that_lie(outcomes: dict[str, Outcome], gguf_bytes: Any) -> None:
    for name, _, expected in gguf_files(gguf_bytes):
        check(f"{name}.gguf", outcomes[f"{name}.gguf"], expected)


def test_safetensors_files_that_lie(
    outcomes: dict[str, Outcome], safetensors_bytes: Callable[..., bytes]
) -> None:
    for name, _, expected in safetensors_files(safetensors_bytes):
        check(name, outcomes[name], expected)


@pytest.mark.parametrize("suffix", [".gguf", ""], ids=["gguf", "safetensors"])
def test_a_file_cut_anywhere_is_an_error(suffix: str, outcomes: dict[str, Outcome]) -> None:
    cut = [name for name in outcomes if name.startswith("cut") and name.endswith(".gguf") is bool(suffix)]
    assert len(cut) == 100
    for name in cut:
        check(name, outcomes[name], "")


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_bytes_bring_out_anything_but_our_errors(
    data: st.DataObject, small_gguf: bytes, tmp_path: Path
) -> None:
    raw = bytearray(small_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        width = data.draw(st.integers(1, 8))
        raw[position : position + width] = data.draw(st.binary(min_size=width, max_size=width))
    path = tmp_path / "changed.gguf"
    path.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(path)
        assert checkpoint is not None
        assert checkpoint.tokenizer is None or json.loads(checkpoint.tokenizer.json)
        for name, info in checkpoint.tensors.items():
            assert tuple(checkpoint.read(name).shape) == info.shape
    except CheckpointError as error:
        one_line = str(error).isprintable()
    else:
        one_line = True
    assert one_line
