"""The parts of all servers together are all parameters, each element once."""

import numpy as np
from hypothesis import given, strategies as st

from distrun.methods.servers.layout import Layout, Parameter, Segment, shares
from distrun.methods.servers.rules import Rule

RULE = Rule("torch.SGD", {"momentum": 0.9, "nesterov": False, "dampening": 0.0, "weight_decay": 0.0, "delay": 0})
PARAMETERS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(0, 1), st.booleans()), max_size=6
)


def layout_of(items, workers=2):
    parameters = tuple(
        Parameter(f"p{number}", tuple(shape), group, is_sparse)
        for number, (shape, group, is_sparse) in enumerate(items)
    )
    return Layout(parameters, (RULE, RULE), workers)


@given(PARAMETERS, st.integers(1, 4))
def test_each_element_has_one_server(items, servers):
    layout = layout_of(items)
    seen = [np.zeros(parameter.shape, int) for parameter in layout.parameters]
    for server, share in enumerate(shares(layout, servers)):
        place = 0
        for part in share.parts:
            assert part.place == place
            own = seen[part.parameter]
            if isinstance(part, Segment):
                own.reshape(-1)[part.offset : part.offset + part.size] += 1
                place += part.size
            else:
                own[server::servers] += 1
                assert part.rows == len(own[server::servers])
                place += part.rows * part.width
        assert place == share.size
    assert all((own == 1).all() for own in seen)


@given(PARAMETERS, st.integers(1, 4))
def test_dense_elements_are_divided_evenly(items, servers):
    sizes = [share.dense_size for share in shares(layout_of(items), servers)]
    assert max(sizes) - min(sizes) <= 1


@given(PARAMETERS)
def test_a_layout_survives_json(items):
    layout = layout_of(items)
    assert Layout.from_json(layout.to_json()) == layout


def test_parameters_of_a_group_lie_together():
    layout = layout_of([([2], 1, False), ([3], 0, False), ([4], 1, False), ([1], 0, True)])
    assert layout.flat_order() == [1, 0, 2]
    assert layout.tables() == [3]
