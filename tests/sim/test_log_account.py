"""What the account of a log takes for right: a begin that was truncated before anybody had read it, and losses."""

from __future__ import annotations

import pytest

from .log_account import Account


def account(begun: int) -> Account:
    """Numbers 0 to 2 of *shop* at 0 to 2, two entries of another one, number 3 of *shop* at 5. The log begins at 3."""
    account = Account(retention=True)
    shop, other = account.numbered("shop"), account.begin("other")
    for position in (0, 1, 2, 5):
        shop.told(shop.next(), position)
    for position in (3, 4):
        other.told(other.next(), position)
    account.begun = account.tailed = begun
    return account


FOUND = {3: (b"other-0", 1.0), 4: (b"other-1", 1.0), 5: (b"shop-3", 1.0)}


def test_numbers_below_the_begin_may_be_gone_though_another_writer_is_first_there() -> None:
    account(3).check(FOUND, 3)


def test_a_number_behind_the_begin_may_not() -> None:
    with pytest.raises(AssertionError, match="b'shop-3' was acknowledged at 5"):
        account(3).check({position: FOUND[position] for position in (3, 4)}, 3)
    with pytest.raises(AssertionError, match="b'shop-2' was acknowledged at 2"):
        account(2).check(FOUND, 2)


def test_a_former_writer_may_repeat_where_an_entry_was_before_its_loss_and_nobody_else() -> None:
    of_log = Account(retention=False)
    shop = of_log.numbered("shop")
    shop.next()
    of_log.told(shop, 0, 7)
    of_log.lose(range(5, 100))
    of_log.told(shop, 0, 100)  # appended again
    of_log.told(shop, 0, 7)
    assert shop.acknowledged == {shop.appended[0]: 100}
    for position in (4, 101):
        with pytest.raises(AssertionError, match=f"at 100, and a repetition was told that it is at {position}"):
            of_log.told(shop, 0, position)
