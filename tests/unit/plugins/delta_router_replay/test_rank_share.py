"""A rank keeps its own layers and positions, and nothing that would break a dispatch."""

import numpy as np
import pytest

from miles_periodic.hooks.values import RankShare, RouteShape
from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError
from miles_periodic.plugins.delta_router_replay.rank_share import own_routes

SHAPE = RouteShape(num_layers=5, top_k=2, num_experts=8)


def sample(num_rows, seed):
    generator = np.random.default_rng(seed)
    first = generator.integers(0, 8, (num_rows, 5, 1))
    return np.concatenate([first, (first + 3) % 8], axis=-1).astype(np.uint8)


ROUTES = [sample(4, 0), sample(0, 1), sample(6, 2)]
ALL = np.concatenate(ROUTES)


def share(layers, rows):
    return RankShare(rank=2, micro_batch=1, layers=layers, rows=np.asarray(rows))


@pytest.mark.parametrize("layers", [[0], [3, 1], [0, 1, 2, 3, 4], []])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [9, -1, 4, 0, -1], [-1], []])
def test_each_position_gets_its_row_of_each_layer(layers, rows):
    own = own_routes(ROUTES, share(layers, rows), SHAPE)
    assert own.shape == (len(layers), len(rows), 2)
    for position, row in enumerate(rows):
        if row >= 0:
            assert (own[:, position] == ALL[row][layers]).all()


def test_the_bytes_held_are_those_of_own_layers_and_positions():
    assert own_routes(ROUTES, share([1, 2], [0, 5, 6]), SHAPE).nbytes == 2 * 3 * 2


def test_ids_are_as_wide_as_the_number_of_experts_whatever_the_first_sample_came_in():
    routes = [ROUTES[0], np.full((1, 5, 2), (300, 1), np.int32)]
    own = own_routes(routes, share([1], [0, 4]), RouteShape(5, 2, num_experts=512))
    assert own.dtype == np.uint16 and own[0, 1].tolist() == [300, 1]


@pytest.mark.parametrize("experts", [[8, 1], [3, 3]])
def test_experts_that_cannot_be_dispatched_are_refused_with_rank_layer_and_row(experts):
    routes = [ROUTES[0], ROUTES[1], ROUTES[2].copy()]
    routes[2][5, 3] = experts
    with pytest.raises(RouteRowsError, match="sample 2.*rank 2, micro-batch 1, layer 3, row 5"):
        own_routes(routes, share([1, 3], [4, 9]), SHAPE)


def test_experts_of_other_ranks_layers_are_not_looked_at():
    routes = [ROUTES[0].copy()]
    routes[0][:, 0] = 0
    own_routes(routes, share([1], [0, 1]), SHAPE)


def test_a_router_beyond_the_layers_of_the_routes_is_refused():
    with pytest.raises(RouteRowsError, match="routers in layers .5., but the routes have 5"):
        own_routes(ROUTES, share([5], [0]), SHAPE)
