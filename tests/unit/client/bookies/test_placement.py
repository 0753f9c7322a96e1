"""Placement: who is chosen, in which order, and who replaces whom."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.client.bookies.placement import (
    Placement,
    SpreadPlacement,
    rack_aware_placement,
    rack_of,
    random_placement,
    region_aware_placement,
    region_of,
)
from bkpy.errors import NotEnoughBookiesError
from bkpy.metadata.bookies.registration import BookieInfo

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

POLICIES = [random_placement, rack_aware_placement, region_aware_placement]
Bookies = dict[str, BookieInfo]
Policy = Callable[[random.Random], SpreadPlacement]


def bookie(bookie_id: str, rack: str = "default", region: str = "default", free_bytes: int = 0) -> BookieInfo:
    return BookieInfo(bookie_id, f"{bookie_id}:3181", rack=rack, region=region, free_bytes=free_bytes)


def racks(**sizes: int) -> Bookies:
    """So many bookies in each rack: a1, a2, ... in rack a."""
    return {f"{rack}{i}": bookie(f"{rack}{i}", rack) for rack, size in sizes.items() for i in range(1, size + 1)}


@st.composite
def clusters(draw: st.DrawFn, bookies_max: int = 12) -> Bookies:
    places = st.tuples(st.sampled_from("xyzuv"), st.sampled_from("rst"), st.sampled_from((0, 1, 10, 1 << 50)))
    drawn = draw(st.lists(places, min_size=1, max_size=bookies_max))
    return {f"b{i}": bookie(f"b{i}", rack, region, free) for i, (rack, region, free) in enumerate(drawn)}


@st.composite
def choices(draw: st.DrawFn, bookies_max: int = 12, size_max: int = 12) -> tuple[Bookies, int, set[str], int]:
    """A cluster, a size that it can give, bookies to avoid, and a seed."""
    bookies = draw(clusters(bookies_max))
    size = draw(st.integers(1, min(size_max, len(bookies))))
    return bookies, size, draw(st.sets(st.sampled_from([*bookies, "gone"]))), draw(st.integers(0, 99))


@st.composite
def replacements(draw: st.DrawFn) -> tuple[Bookies, list[str], set[int], set[str], int]:
    """A cluster, an ensemble of which some may have left it, what to replace, whom to avoid, and a seed."""
    bookies, size, avoid, seed = draw(choices(bookies_max=14, size_max=7))
    ensemble = draw(st.permutations(sorted(bookies)))[:size]
    positions = draw(st.sets(st.integers(0, size - 1), min_size=1))
    gone = draw(st.sets(st.sampled_from(ensemble)))
    return {b: info for b, info in bookies.items() if b not in gone}, ensemble, positions, avoid, seed


def nearest(domains: Sequence[Hashable]) -> int:
    """The smallest distance between two equals in a circle, its size if there are none."""
    size = len(domains)
    pairs = combinations(range(size), 2)
    return min((min(j - i, size - j + i) for i, j in pairs if domains[i] == domains[j]), default=size)


def even(taken: Counter[Hashable], there: Counter[Hashable]) -> bool:
    """Whether no domain could give one less because another can give one more."""
    return all(taken[a] <= taken[b] + 1 for a in taken for b in there if taken[b] < there[b])


# --- choosing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@given(choices())
def test_a_choice_is_of_different_bookies_and_avoids_as_many_as_it_can(
    policy: Policy, given_: tuple[Bookies, int, set[str], int]
) -> None:
    bookies, size, avoid, seed = given_
    chosen = policy(random.Random(seed)).choose(bookies, size, avoid)
    assert len(set(chosen)) == len(chosen) == size
    assert set(chosen) <= bookies.keys()
    assert len(set(chosen) & avoid) == max(0, size - len(bookies.keys() - avoid))


@pytest.mark.thorough
@pytest.mark.parametrize("policy", POLICIES)
@given(clusters())
def test_too_few_bookies_are_told_by_name(policy: Policy, bookies: Bookies) -> None:
    placement = policy(random.Random(0))
    with pytest.raises(NotEnoughBookiesError) as caught:
        placement.choose(bookies, len(bookies) + 1, ())
    assert f"needs {len(bookies) + 1}" in str(caught.value)
    assert ", ".join(sorted(bookies)) in str(caught.value)
    with pytest.raises(NotEnoughBookiesError, match="0 are available: none"):
        placement.choose({}, 1, ())


@pytest.mark.thorough
@pytest.mark.parametrize("policy", POLICIES)
@given(choices())
def test_the_same_random_numbers_give_the_same_choice(
    policy: Policy, given_: tuple[Bookies, int, set[str], int]
) -> None:
    bookies, size, avoid, seed = given_
    backwards = dict(reversed(bookies.items()))
    first = policy(random.Random(seed)).choose(bookies, size, avoid)
    assert first == policy(random.Random(seed)).choose(backwards, size, sorted(avoid))


@given(choices())
def test_racks_are_used_evenly_and_any_write_set_is_on_as_many_as_possible(
    given_: tuple[Bookies, int, set[str], int],
) -> None:
    bookies, size, _, seed = given_
    chosen = rack_aware_placement(random.Random(seed)).choose(bookies, size, ())
    used = [rack_of(bookies[b]) for b in chosen]
    assert even(Counter(used), Counter(map(rack_of, bookies.values())))
    # If the fullest rack has m of n, then m of them must share the circle: no better distance than n // m is possible.
    most = max(Counter(used).values())
    assert nearest(used) >= (size // most if most > 1 else size)


@pytest.mark.parametrize(("policy", "domain"), [(rack_aware_placement, rack_of), (region_aware_placement, region_of)])
@given(choices(bookies_max=7, size_max=5))
def test_no_other_ensemble_keeps_two_of_a_domain_farther_apart(
    policy: Policy,
    domain: Callable[[BookieInfo], Hashable],
    given_: tuple[Bookies, int, set[str], int],
) -> None:
    bookies, size, avoid, seed = given_
    chosen = policy(random.Random(seed)).choose(bookies, size, ())
    others = set(permutations([domain(info) for info in bookies.values()], size))
    assert nearest([domain(bookies[b]) for b in chosen]) == max(map(nearest, others))
    # The same among those that aren't to be avoided, as long as they suffice.
    good = {b: info for b, info in bookies.items() if b not in avoid}
    if len(good) >= size:
        chosen = policy(random.Random(seed)).choose(bookies, size, avoid)
        others = set(permutations([domain(info) for info in good.values()], size))
        assert nearest([domain(bookies[b]) for b in chosen]) == max(map(nearest, others))


@given(choices())
def test_regions_are_used_evenly_and_so_are_the_racks_of_each(given_: tuple[Bookies, int, set[str], int]) -> None:
    bookies, size, _, seed = given_
    chosen = region_aware_placement(random.Random(seed)).choose(bookies, size, ())
    assert even(Counter(region_of(bookies[b]) for b in chosen), Counter(map(region_of, bookies.values())))
    for region in {bookies[b].region for b in chosen}:
        there = Counter(rack_of(info) for info in bookies.values() if info.region == region)
        assert even(Counter(rack_of(bookies[b]) for b in chosen if bookies[b].region == region), there)


def test_two_regions_alternate_and_so_do_their_racks() -> None:
    bookies = {
        f"{region}{rack}{i}": bookie(f"{region}{rack}{i}", rack, region)
        for region in "rs"
        for rack in "xy"
        for i in range(3)
    }
    for seed in range(50):
        chosen = region_aware_placement(random.Random(seed)).choose(bookies, 8, ())
        regions = [bookies[b].region for b in chosen]
        assert regions in (list("rs" * 4), list("sr" * 4))
        assert nearest([rack_of(bookies[b]) for b in chosen]) == 4


def test_a_large_rack_is_spread_among_small_ones() -> None:
    bookies = racks(a=9, b=1, c=1, d=1)
    for seed in range(50):
        chosen = rack_aware_placement(random.Random(seed)).choose(bookies, 6, ())
        assert Counter(b[0] for b in chosen) == {"a": 3, "b": 1, "c": 1, "d": 1}
        assert nearest([b[0] for b in chosen]) == 2


def test_every_place_of_the_ensemble_goes_to_every_rack() -> None:
    bookies = racks(a=4, b=1, c=1)
    placement = rack_aware_placement(random.Random(1))
    first = Counter(placement.choose(bookies, 4, ())[0][0] for _ in range(2000))
    assert first["a"] == pytest.approx(1000, abs=150)
    assert first["b"] == pytest.approx(500, abs=100)


# --- weights --------------------------------------------------------------------------------------------------------


def shares(placement: Placement, bookies: Bookies, choose: Callable[[], Collection[str]]) -> dict[str, float]:
    rounds = 6000
    count = Counter(b for _ in range(rounds) for b in choose())
    return {b: count[b] / rounds for b in bookies}


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [rack_aware_placement, region_aware_placement])
def test_bookies_are_chosen_in_proportion_to_their_free_space(policy: Policy) -> None:
    placement = policy(random.Random(5))
    bookies = {name: bookie(name, free_bytes=free << 40) for name, free in (("a", 6), ("b", 3), ("c", 1))}
    found = shares(placement, bookies, lambda: placement.choose(bookies, 1, ()))
    assert found == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.03)
    replaced = {**bookies, "old": bookie("old", free_bytes=1 << 60)}
    found = shares(placement, bookies, lambda: placement.replace(replaced, ["old"], [0], ()))
    assert found == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.03)


@pytest.mark.thorough
def test_a_bookie_of_unknown_space_counts_as_the_mean() -> None:
    placement = rack_aware_placement(random.Random(6))
    bookies = {"a": bookie("a", free_bytes=300), "b": bookie("b", free_bytes=100), "c": bookie("c", free_bytes=0)}
    found = shares(placement, bookies, lambda: placement.choose(bookies, 1, ()))
    assert found == pytest.approx({"a": 3 / 6, "b": 1 / 6, "c": 2 / 6}, abs=0.03)
    unknown = racks(a=4)
    found = shares(placement, unknown, lambda: placement.choose(unknown, 1, ()))
    assert found == pytest.approx(dict.fromkeys(unknown, 0.25), abs=0.03)


def test_random_placement_heeds_neither_space_nor_racks() -> None:
    placement = random_placement(random.Random(7))
    bookies = {name: bookie(name, name, free_bytes=free) for name, free in (("a", 1), ("b", 1 << 50), ("c", 0))}
    found = shares(placement, bookies, lambda: placement.choose(bookies, 2, ()))
    assert found == pytest.approx(dict.fromkeys(bookies, 2 / 3), abs=0.03)


def test_space_decides_only_among_racks_that_are_used_equally() -> None:
    bookies = {**racks(a=1, b=1), "huge": bookie("huge", "a", free_bytes=1 << 60)}
    for seed in range(50):
        assert "b1" in rack_aware_placement(random.Random(seed)).choose(bookies, 2, ())


# --- replacing ------------------------------------------------------------------------------------------------------


def replaced_or_none(
    policy: Policy, given_: tuple[Bookies, list[str], set[int], set[str], int]
) -> tuple[str, ...] | None:
    bookies, ensemble, positions, avoid, seed = given_
    there = bookies.keys() - set(ensemble)
    placement = policy(random.Random(seed))
    if len(there) < len(positions):
        with pytest.raises(NotEnoughBookiesError) as caught:
            placement.replace(bookies, ensemble, positions, avoid)
        assert f"{len(there)} are available: {', '.join(sorted(there)) or 'none'}" in str(caught.value)
        assert all(ensemble[i] in str(caught.value) for i in positions)
        return None
    return placement.replace(bookies, ensemble, positions, avoid)


@pytest.mark.parametrize("policy", POLICIES)
@given(replacements())
def test_a_replacement_is_new_and_everybody_else_stays(
    policy: Policy, given_: tuple[Bookies, list[str], set[int], set[str], int]
) -> None:
    bookies, ensemble, positions, avoid, _ = given_
    result = replaced_or_none(policy, given_)
    if result is None:
        return
    assert [b for i, b in enumerate(result) if i not in positions] == [
        b for i, b in enumerate(ensemble) if i not in positions
    ]
    new = [result[i] for i in positions]
    candidates = bookies.keys() - set(ensemble)
    assert len(set(new)) == len(new)
    assert set(new) <= candidates
    assert len(set(new) & avoid) == max(0, len(positions) - len(candidates - avoid))


@given(replacements())
def test_a_replacement_uses_as_many_racks_as_there_are(
    given_: tuple[Bookies, list[str], set[int], set[str], int],
) -> None:
    bookies, ensemble, positions, _, seed = given_
    result = replaced_or_none(rack_aware_placement, (bookies, ensemble, positions, set(), seed))
    if result is None:
        return
    stay = {rack_of(bookies[b]) for i, b in enumerate(ensemble) if i not in positions and b in bookies}
    fresh = {rack_of(bookies[b]) for b in bookies if b not in ensemble} - stay
    used = {rack_of(bookies[result[i]]) for i in positions} - stay
    assert len(used) == min(len(fresh), len(positions))


@given(replacements())
def test_one_replacement_is_as_far_as_possible_from_its_rack_and_first_from_its_region(
    given_: tuple[Bookies, list[str], set[int], set[str], int],
) -> None:
    bookies, ensemble, positions, _, seed = given_
    place = min(positions)

    def apart(bookie_id: str, domain: Callable[[BookieInfo], Hashable]) -> int:
        size = len(ensemble)
        others = [(i, b) for i, b in enumerate(ensemble) if i != place and b in bookies]
        same = [abs(i - place) for i, b in others if domain(bookies[b]) == domain(bookies[bookie_id])]
        return min((min(d, size - d) for d in same), default=size)

    def ranks(bookie_id: str) -> tuple[int, int]:
        return apart(bookie_id, region_of), apart(bookie_id, rack_of)

    candidates = bookies.keys() - set(ensemble)
    only = (bookies, ensemble, {place}, set[str](), seed)
    if (result := replaced_or_none(rack_aware_placement, only)) is not None:
        assert apart(result[place], rack_of) == max(apart(b, rack_of) for b in candidates)
    if (result := replaced_or_none(region_aware_placement, only)) is not None:
        assert ranks(result[place]) == max(map(ranks, candidates))


def test_a_replacement_comes_from_the_rack_of_the_one_that_failed_if_all_others_are_in_use() -> None:
    bookies: Mapping[str, BookieInfo] = racks(a=5, b=5, c=2)
    for seed in range(50):
        result = rack_aware_placement(random.Random(seed)).replace(bookies, ["a1", "b1", "c1"], [2], ["a1", "b1", "c1"])
        assert result == ("a1", "b1", "c2")
        # Not so if that rack is to be avoided.
        result = rack_aware_placement(random.Random(seed)).replace(bookies, ["a1", "b1", "c1"], [2], ["c2"])
        assert result[2][0] in "ab"


def test_one_that_stays_without_being_registered_is_no_obstacle() -> None:
    results = {
        rack_aware_placement(random.Random(seed)).replace(racks(a=1, b=2), ["gone", "b1"], [1], ())
        for seed in range(50)
    }
    assert results == {("gone", "a1"), ("gone", "b2")}
