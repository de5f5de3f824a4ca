import atom.graphs
from atom.graphs import region_graph


def test_all_is_sorted_and_complete() -> None:
    public = [
        name
        for name, value in vars(atom.graphs).items()
        if not name.startswith("_") and not hasattr(value, "__path__") and type(value).__name__ != "module"
    ]
    assert sorted(public) == atom.graphs.__all__
    assert sorted(region_graph.__all__) == region_graph.__all__


def test_every_public_name_has_a_docstring() -> None:
    undocumented = [n for n in atom.graphs.__all__ if not getattr(atom.graphs, n).__doc__]
    assert undocumented == []
