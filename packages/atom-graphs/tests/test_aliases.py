import importlib

import pytest

ALIASES = {
    "atom.utils.region_graph": "atom.graphs.region_graph",
    "atom.utils.forward_context": "atom.graphs.forward_context",
    "atom.spec_decode.draft_graph": "atom.graphs.draft_graph",
    "atom.distributed.nccl_watchdog": "atom.graphs.nccl_watchdog",
}


@pytest.mark.parametrize(("alias", "home"), ALIASES.items())
def test_an_alias_is_the_home_module_itself(alias: str, home: str) -> None:
    assert importlib.import_module(alias) is importlib.import_module(home)


def test_patching_through_either_name_patches_both(monkeypatch: pytest.MonkeyPatch) -> None:
    alias = importlib.import_module("atom.utils.region_graph")
    home = importlib.import_module("atom.graphs.region_graph")
    monkeypatch.setattr(alias, "request_bucket", "patched")
    assert home.request_bucket == "patched"
