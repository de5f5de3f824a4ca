import pytest
import torch

import atom.models.kernels.ops  # noqa: F401 - registers the ops
from atom.models.kernels.reference import torch_set

ops = torch.ops.atom_kernels


def calls():
    x, weight, table = torch.randn(3, 8), torch.randn(8), torch.randn(11, 8)
    ids, matrix = torch.tensor([0, 10, 4]), torch.randn(6, 8)
    return {
        "rms_norm": (x, weight, 1e-5),
        "add_rms_norm": (x, torch.randn(3, 8), weight, 1e-5),
        "silu_mul": (x,),
        "embedding": (ids, table),
        "linear": (x, matrix, None, torch.randn(6)),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_an_op_is_its_twin_on_the_cpu(name):
    arguments = calls()[name]
    keywords = {"bias": arguments[3]} if name == "linear" else {}
    plain = arguments[:2] if name == "linear" else arguments
    torch.testing.assert_close(getattr(ops, name)(*arguments), getattr(torch_set, name)(*plain, **keywords))


@pytest.mark.parametrize("name", list(calls()))
def test_schema_and_fake_implementation_hold(name):
    torch.library.opcheck(
        getattr(ops, name).default, calls()[name], test_utils=("test_schema", "test_faketensor")
    )


def test_rotary_turns_its_arguments_in_place():
    query, key, cos_sin = torch.randn(2, 3, 4), torch.randn(2, 1, 4), torch.randn(9, 4)
    expected = query.clone(), key.clone()
    positions = torch.tensor([3, 8])
    torch_set.rotary(*expected, positions, cos_sin)
    ops.rotary(query, key, positions, cos_sin)
    torch.testing.assert_close((query, key), expected)


def test_ops_stay_single_nodes_in_a_traced_graph():
    seen = []

    def backend(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    def forward(x, weight, matrix):
        return ops.linear(ops.rms_norm(x, weight, 1e-5), matrix)

    torch.compile(forward, backend=backend, fullgraph=True)(
        torch.randn(2, 8), torch.ones(8), torch.randn(4, 8)
    )
    assert seen == ["atom_kernels.rms_norm", "atom_kernels.linear"]
