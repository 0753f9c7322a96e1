"""Write sets against the published example, and which sizes are refused."""

from itertools import combinations

import pytest

from bkpy.errors import ConfigError
from bkpy.protocol.ledger.quorum import arranged, check_sizes, covered, stripe_bookies, write_set


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


@pytest.mark.parametrize(
    ("size", "write", "ack"), [(e, w, a) for e in range(1, 8) for w in range(1, e + 1) for a in range(1, w + 1)]
)
def test_an_ensemble_is_arranged_whenever_that_can_be(size: int, write: int, ack: int) -> None:
    """Each write set has an ack quorum that is there, and so many that a recovery needs no absent bookie."""
    names = [f"b{i}" for i in range(size)]
    needed = max(ack, write - ack + 1)

    def enough(ensemble: tuple[str, ...], absent: set[str]) -> bool:
        sets = [[ensemble[i] for i in write_set(first, size, write)] for first in range(size)]
        return all(len(set(members) - absent) >= needed for members in sets)

    for count in range(size + 1):
        possible = any(enough(tuple(names), {names[i] for i in some}) for some in combinations(range(size), count))
        for some in combinations(range(size), count):
            absent = {names[i] for i in some}
            found = arranged(names, absent, write, ack)
            assert (found is not None) is possible
            if found is None:
                continue
            assert enough(found, absent)
            assert covered([i for i in range(size) if found[i] not in absent], size, write, ack)
            assert sorted(found) == names
            assert found == tuple(names) or not enough(tuple(names), absent)
            assert [name for name in found if name not in absent] == [name for name in names if name not in absent]
