"""Write sets against the published example, and coverage against its definition, exhaustively."""

import itertools

import pytest

from bkpy.errors import ConfigError
from bkpy.protocol.quorum import check_sizes, covered, write_set


def test_write_sets_are_those_of_the_published_example() -> None:
    assert [write_set(n, 4, 3) for n in range(6)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
        (1, 2, 3),
    ]


@pytest.mark.parametrize("ensemble", range(1, 7))
def test_coverage_is_what_its_definition_says(ensemble: int) -> None:
    for quorum in range(1, ensemble + 1):
        for acks in range(1, quorum + 1):
            ack_quorums = [
                set(chosen)
                for first in range(ensemble)
                for chosen in itertools.combinations(write_set(first, ensemble, quorum), acks)
            ]
            for size in range(ensemble + 1):
                for answered in itertools.combinations(range(ensemble), size):
                    by_definition = all(q & set(answered) for q in ack_quorums)
                    assert covered(set(answered), ensemble, quorum, acks) == by_definition


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (3, 3, -1)])
def test_wrong_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="ensemble_size >= write_quorum >= ack_quorum >= 1"):
        check_sizes(*sizes)
