"""The object behind the entry point, over real checkpoints."""

from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.models.errors import ModelConfigError, UnsupportedCheckpointError, WeightsError
from atom.models.registry import Architecture, AtomModels, provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama, saved by transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def build(folder: Path) -> Callable[..., Any]:
    """Builds the folder's model after changing its configuration."""
    from atom.config import Config

    def build_(progress: Any = None, **changes: Any) -> Any:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        checkpoint = provider.open(folder)
        assert checkpoint is not None
        config = Config(model=str(folder))
        return provider.build(checkpoint, config, device=CPU, dtype=torch.float32, progress=progress)

    return build_


def test_the_entry_point_leads_to_the_provider() -> None:
    (entry,) = (e for e in importlib.metadata.entry_points(group="atom.models") if e.name == "atom-models")
    assert entry.load() is provider
    assert provider.name == "atom-models"
    assert "LlamaForCausalLM" in provider.architectures


def test_a_class_is_imported_only_when_wanted() -> None:
    registry = AtomModels({"Absent": Architecture("atom.models.absent", "Absent")}, name="absent")
    assert list(registry.architectures) == ["Absent"]
    with pytest.raises(ModuleNotFoundError):
        registry.architectures["Absent"].load()


def test_building_loads_every_weight_and_tells_how_far_it_is(build: Callable[..., Any]) -> None:
    told: list[tuple[str, int, int]] = []
    model = build(progress=lambda *step: told.append(step))
    assert model.compute_logits(torch.zeros(2, 32)).shape == (2, 64)
    what, done_bytes, total_bytes = told[-1]
    assert what == "Loading weights"
    assert done_bytes == total_bytes > 0
    assert [step[1] for step in told] == sorted(step[1] for step in told)


def test_an_unknown_architecture_names_those_there_are(build: Callable[..., Any]) -> None:
    with pytest.raises(
        UnsupportedCheckpointError, match="'MambaForCausalLM' is not supported; supported are Llama"
    ):
        build(architectures=["MambaForCausalLM"])


def test_an_unknown_quantisation_names_what_there_is(build: Callable[..., Any]) -> None:
    with pytest.raises(
        UnsupportedCheckpointError, match="quantised with 'awq' are not supported; supported are plain"
    ):
        build(quantization_config={"quant_method": "awq"})


def test_weights_of_another_size_are_named(build: Callable[..., Any]) -> None:
    with pytest.raises(WeightsError, match=r"wrong shape: .*is \[48, 32\] but the model needs \[50, 32\]"):
        build(intermediate_size=50)


def test_a_layer_that_cannot_be_built_names_the_checkpoint(build: Callable[..., Any], folder: Path) -> None:
    with pytest.raises(ModelConfigError, match=f"{folder}: .*rope_type 'martian'"):
        build(rope_parameters={"rope_type": "martian", "rope_theta": 1e4})


def test_a_configuration_that_makes_no_model_names_the_field(build: Callable[..., Any]) -> None:
    with pytest.raises(ModelConfigError, match="num_key_value_heads is 3"):
        build(num_key_value_heads=3)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "max_position_embeddings"])
def test_a_size_no_machine_could_hold_is_refused_before_memory_is_taken(
    field: str, build: Callable[..., Any]
) -> None:
    with pytest.raises(ModelConfigError, match=f"configuration field {field} is {2**50}"):
        build(**{field: 2**50})
