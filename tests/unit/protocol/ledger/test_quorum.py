"""Write sets against the published example, and which sizes are refused."""

import pytest

from bkpy.errors import ConfigError
from bkpy.protocol.ledger.quorum import check_sizes, covered, stripe_bookies, write_set


def test_write_sets_are_those_of_the_published_example() -> None:
    assert [write_set(n, 4, 3) for n in range(6)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
        (1, 2, 3),
    ]


@pytest.mark.parametrize(("size", "quorum"), [(e, q) for e in range(1, 8) for q in range(1, e + 1)])
def test_the_bookies_of_the_stripes_hold_every_entry_and_each_gets_its_turn(size: int, quorum: int) -> None:
    chosen = [stripe_bookies(rotation, size, quorum) for rotation in range(100, 100 + size)]
    for indexes in chosen:
        assert all(set(indexes) & set(write_set(entry_id, size, quorum)) for entry_id in range(size))
        assert covered(indexes, size, quorum, quorum)
        assert len(indexes) == -(-size // quorum)
    assert set().union(*chosen) == set(range(size))


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (3, 3, -1)])
def test_wrong_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="ensemble_size >= write_quorum >= ack_quorum >= 1"):
        check_sizes(*sizes)
