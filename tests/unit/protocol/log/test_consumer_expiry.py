"""For how long a consumer has been idle is what passes have counted, in its present state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bkpy.protocol.log.consumer_expiry import Idle, expired, observed


def test_only_time_in_one_state_with_something_to_read_counts() -> None:
    idle = observed({}, {"a": "1", "b": "1"}, 5.0)
    assert idle == {"a": Idle("1", 0.0), "b": Idle("1", 0.0)}
    idle = observed(idle, {"a": "1", "b": "2"}, 5.0)
    assert idle == {"a": Idle("1", 5.0), "b": Idle("2", 0.0)}
    idle = observed(idle, {"b": "2"}, 5.0)  # a has read everything
    assert observed(idle, {"a": "1", "b": "2"}, 5.0) == {"a": Idle("1", 0.0), "b": Idle("2", 10.0)}


def test_one_that_was_idle_for_as_long_as_the_log_waits_expires() -> None:
    idle = {"a": Idle("1", 9.9), "b": Idle("1", 10.0)}
    assert expired(idle, 10.0) == {"b"}
    assert expired(idle, 0.0) == {"a", "b"}


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 100)), max_size=30))
def test_no_more_is_counted_than_passed_since_the_last_commit(passes: list[tuple[bool, bool, float]]) -> None:
    """Of one consumer: whether it has committed before the pass, whether something is unread, the time since."""
    idle: dict[str, Idle] = {}
    mark, since = 0, 0.0
    for commits, unread, elapsed_s in passes:
        mark += commits
        since = 0.0 if commits or not unread else since + elapsed_s
        idle = observed(idle, {"a": str(mark)} if unread else {}, elapsed_s)
        assert idle.get("a", Idle("", 0.0)).seconds <= since
