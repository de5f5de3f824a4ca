"""StableLM for ATOM: `provider` is what the entry point of the group `atom.models` names."""

from __future__ import annotations

from atom.models.registry import Architecture, AtomModels

provider = AtomModels(
    {"StableLmForCausalLM": Architecture("stablelm_for_atom.model", "StableLmForCausalLM")},
    name="stablelm-for-atom",
)
