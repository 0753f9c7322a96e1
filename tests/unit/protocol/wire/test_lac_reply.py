"""What readers and recoveries take from a reply about last add confirmed."""

from __future__ import annotations

from typing import Any

import pytest

from bkpy.errors import CorruptDataError, DigestMismatchError, TooManyRequestsError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import LastAddConfirmed, parse_lac_reply, proven_to_reader, unverified_last_entry
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk

LEDGER = 7
CODEC = RecordCodec(LEDGER)
NOTHING_EXPLICIT = (-1, 0)


def reply(status: Status = Status.OK, entry: bytes = b"", explicit: bytes = b"", *, fenced: bool = True) -> wire.Frame:
    head = m.pack([int(status), len(entry), fenced])
    return wire.Frame(Op.READ_LAC, 1, memoryview(head), memoryview(entry + explicit))


def record(entry_id: int, lac: int, length: int) -> bytes:
    parts: list[Any] = []
    CODEC.encode_run(parts, [b"x" * 10], entry_id, lac, length - 10)
    return b"".join(parts)


def damaged(whole: bytes) -> bytes:
    return whole[:-1] + bytes([whole[-1] ^ 1])


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize(
    ("answer", "proven", "explicit", "measured"),
    [
        ({"status": Status.NO_SUCH_LEDGER}, (-1, 0), NOTHING_EXPLICIT, (-1, 0)),
        # 60 is the length up to entry 5, not up to 3
        ({"entry": record(5, 3, 60)}, (3, None), NOTHING_EXPLICIT, (5, 60)),
        ({"explicit": CODEC.explicit_lac(5, 60)}, (5, 60), (5, 60), (5, 60)),
        ({"entry": record(5, 3, 60), "explicit": CODEC.explicit_lac(5, 60)}, (5, 60), (5, 60), (5, 60)),
        ({"entry": record(9, 8, 100), "explicit": CODEC.explicit_lac(5, 60)}, (8, None), (5, 60), (9, 100)),
        # the first stays
        ({"entry": record(6, 5, 70), "explicit": CODEC.explicit_lac(5, 60)}, (5, None), (5, 60), (6, 70)),
        ({"explicit": CODEC.explicit_lac(5, 60) + CODEC.explicit_lac(4, 50)}, (5, 60), (5, 60), (5, 60)),
        ({"status": Status.UNKNOWN, "entry": record(5, 3, 60)}, (3, None), NOTHING_EXPLICIT, (5, 60)),
    ],
)
def test_what_verifies_is_proven_to_both(
    answer: dict[str, Any],
    proven: tuple[int, int | None],
    explicit: tuple[int, int],
    measured: tuple[int, int],
    fenced: bool,
) -> None:
    frame = reply(**answer, fenced=fenced)
    expected = LastAddConfirmed(*proven, fenced, measured)
    last_entry = max((header.entry_id for header in walk(answer.get("entry", b""))), default=-1)
    assert parse_lac_reply(CODEC, frame, LEDGER, "b1") == (expected, explicit, None, last_entry)
    assert proven_to_reader(CODEC, frame, LEDGER, "b1") == expected


@pytest.mark.parametrize(
    ("answer", "error", "proven"),
    [
        ({"status": Status.UNKNOWN}, CorruptDataError, (-1, 0)),
        ({"entry": damaged(record(5, 3, 60))}, DigestMismatchError, (-1, 0)),
        ({"entry": record(5, 3, 60), "explicit": damaged(CODEC.explicit_lac(5, 60))}, DigestMismatchError, (3, None)),
        ({"entry": record(5, 3, 60), "explicit": b"short"}, CorruptDataError, (3, None)),
    ],
)
def test_a_flawed_reply_tells_a_recovery_of_the_fence_and_a_reader_nothing(
    answer: dict[str, Any], error: type[Exception], proven: tuple[int, int | None]
) -> None:
    parsed = parse_lac_reply(CODEC, reply(**answer), LEDGER, "b1")
    assert parsed.proven[:3] == (*proven, True)
    assert type(parsed.flaw) is error
    with pytest.raises(error):
        proven_to_reader(CODEC, reply(**answer), LEDGER, "b1")


def test_a_refusal_is_raised_to_all() -> None:
    head = m.pack([int(Status.TOO_MANY_REQUESTS), "busy"])
    refusal = wire.Frame(Op.READ_LAC, 1, memoryview(head), memoryview(b""))
    for parse in (
        lambda: parse_lac_reply(CODEC, refusal, LEDGER, "b1"),
        lambda: unverified_last_entry(refusal, 7, "b1"),
    ):
        with pytest.raises(TooManyRequestsError):
            parse()


def test_a_refusal_of_a_bookie_that_cannot_tell_says_why() -> None:
    head = m.pack([int(Status.UNKNOWN), "the index can't be read"])
    refusal = wire.Frame(Op.READ_LAC, 1, memoryview(head), memoryview(b""))
    with pytest.raises(CorruptDataError, match=r"the index can't be read \[ledger 7, bookie b1\]"):
        parse_lac_reply(CODEC, refusal, LEDGER, "b1")


def test_the_last_entry_of_a_ledger_whose_password_is_not_known() -> None:
    assert unverified_last_entry(reply(Status.NO_SUCH_LEDGER), LEDGER, "b1") == -1
    explicit = CODEC.explicit_lac(7, 80)
    assert unverified_last_entry(reply(entry=damaged(record(5, 3, 60)), explicit=explicit), LEDGER, "b1") == 5
    with pytest.raises(CorruptDataError, match="can't tell"):
        unverified_last_entry(reply(Status.UNKNOWN, record(5, 3, 60)), LEDGER, "b1")
    cut_short = wire.Frame(Op.READ_LAC, 1, memoryview(m.pack([0, 100, False])), memoryview(b""))
    with pytest.raises(CorruptDataError, match="without the entry"):
        unverified_last_entry(cut_short, LEDGER, "b1")
