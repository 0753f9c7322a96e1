"""Whole frames that are no requests: an answer under their own id, and no harm to anything else of the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.hooks import pool_of
from tests.in_process import DEADLINE_S, InProcess
from tests.sim.loop import SimLoop
from tests.unit.bookie.connection.raw import Raw, add, frame, hello
from tests.waiting import eventually

from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"k" * 32
PING = 1 << 40


BAD: list[tuple[int, Any]] = [
    (Op.READ, [0, 1, 0, 5.0, 1000]),
    (Op.READ, [0, 1, 0, 2**63, 1000]),
    (Op.READ, [0, 1, -1, 5, 1000]),
    (Op.READ, [0, 1, 6, 5, 1000]),
    (Op.READ, [0, True, 0, 5, 1000]),
    (Op.READ, [0, 1, 0, 5, 0]),
    (Op.READ, [0, 1, 0, 5, 2**63]),
    (Op.READ, [-1, 1, 0, 5, 1000]),
    (Op.READ, [2, 1, 0, 5, 1000]),
    (Op.READ, [0, 1, 0, 5]),
    (Op.READ, {"ledger": 1}),
    (Op.READ_LAC, [4, 1]),
    (Op.READ_LAC, [False, 1]),
    (Op.READ_LAC, [0, 2**63]),
    (Op.WRITE_LAC, [-1]),
    (Op.WAIT_LAC, [1, -2, False, 0]),
    (Op.WAIT_LAC, [1, 2**63, False, 0]),
    (Op.WAIT_LAC, [1, 0, 0, 0]),
    (Op.WAIT_LAC, [1, 0, False, -1]),
    (Op.FORCE, ["1"]),
    (Op.PRESENT, [[1], [KEY[1:]]]),
    (Op.PRESENT, [[1, 2], [KEY]]),
    (Op.ADD, [0, [1], [0], [1], 1, [31]]),
    (Op.ADD, [4, [1], [0], [1], 1, [32]]),
    (Op.ADD, [-1, [1], [0], [1], 1, [32]]),
    (Op.ADD, [4, [1, 1], [0, 1], [1, 1], 1, [16, 16]]),
    (Op.ADD, [0, [1], [2**63 - 1], [1], 1, [32]]),
    (Op.HELLO, ["again", "", ""]),
    (99, []),
]


@pytest.mark.scenario(68)
@pytest.mark.parametrize(("op", "head"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_request_is_answered_under_its_own_id_and_the_connection_goes_on(
    cluster: InProcess, op: int, head: Any
) -> None:
    raw = await Raw.connect(cluster)
    raw.send(
        frame(Op.PRESENT, [[1, 2], [KEY, KEY]]),
        frame(op, head, b"x" * 32 if op == Op.ADD else b"", 55),
        frame(op, head, b"x" * 32 if op == Op.ADD else b"", 56),  # of two, the second is met when the first has waited
        add(2, correlation_id=57),
        frame(Op.READ, [0, 1, 0, 0, 100], correlation_id=58),
    )
    for correlation_id in (55, 56):
        opcode, answer = await raw.reply(correlation_id)
        assert opcode == op | wire.REPLY
        if op == Op.ADD:
            assert answer == Status.BAD_REQUEST  # and no message: clients of the first version take nothing else
        else:
            assert answer[0] == Status.BAD_REQUEST
            assert isinstance(answer[1], str)
    assert (await raw.reply(57))[1] == Status.OK
    assert (await raw.reply(58))[1] == [Status.OK, 0, [], -1]  # nothing was stored of what was refused
    assert "bkpy_bookie_bad_requests_total 2.0" in cluster.service("a").metrics.render().decode()
    raw.close()


@pytest.mark.scenario(68)
@pytest.mark.parametrize("opcode", [0, wire.REPLY, wire.REPLY | Op.READ])
async def test_what_is_no_requests_opcode_ends_the_connection(cluster: InProcess, opcode: int) -> None:
    raw = await Raw.connect(cluster)
    raw.send(frame(opcode, []))
    assert (await raw.rest())[0] == (wire.REPLY, [Status.BAD_REQUEST, f"opcode {opcode} is no request's"])


@pytest.mark.scenario(68)
async def test_a_stranger_gets_no_more_memory_than_a_greeting_takes(cluster: InProcess) -> None:
    raw = await Raw.connect(cluster, greet=False)
    raw.send(hello("x" * m.HELLO_BYTES_MAX))
    assert (await raw.rest())[0][1][0] == Status.TOO_LARGE


async def test_a_client_whose_append_is_called_bad_fails_over_and_the_others_go_on(tmp_path: Path) -> None:
    """The answer is one that clients have always understood."""
    cluster = InProcess(tmp_path)
    await cluster.start("abcd")
    client = await cluster.client()
    writer, other = await client.create_ledger(), await client.create_ledger()
    await asyncio.gather(writer.append(b"0"), other.append(b"0"))
    generations = {name: pool_of(client).channel(name).generation for name in "abcd"}
    victim = writer.metadata.fragments[-1].bookies[0]
    storage = cluster.storage(victim)
    for connection in cluster.connections(victim):
        take = connection.adds.add

        def refuse(frame: wire.Frame, take: Any = take) -> None:
            if writer.ledger_id in m.decode_add(frame.head, len(frame.body)).ledger_ids:
                raise m.ProtocolError("made up")
            take(frame)

        connection.adds.add = refuse  # type: ignore[method-assign]
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
        assert await other.append(b"1") == 1
    await eventually(lambda: victim not in writer.metadata.fragments[-1].bookies)  # two others were enough for the ack
    assert {name: pool_of(client).channel(name).generation for name in generations if generations[name]} == {
        name: generation for name, generation in generations.items() if generation
    }
    assert (await storage.states((writer.ledger_id,)))[writer.ledger_id] is not None
    await cluster.stop()


ODD = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 3, 4, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([b"", KEY, KEY[1:]]),
    st.none(),
)
VALUES = st.recursive(ODD, lambda inner: st.lists(inner, max_size=6), max_leaves=12)
# Heads with the shape of a request, and a value here and there that doesn't belong: those come far.
SHAPED = st.sampled_from(
    [
        [0, [1], [0], [1], 1, [32]],
        [0, [1, 2], [0, 0], [1, 1], [1, 1], [16, 16]],
        [[1], [KEY]],
        [0, 1, 0, 5, 1000],
        [0, 1],
        [1],
        [1, -1, False, 0],
    ]
)


@st.composite
def heads(draw: st.DrawFn) -> Any:
    head: Any = draw(st.one_of(VALUES, SHAPED))
    if isinstance(head, list) and head:
        head = list(head)
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(head) - 1))
            inner = head[at]
            if isinstance(inner, list) and inner and draw(st.booleans()):
                head[at] = [draw(ODD), *inner[1:]]
            else:
                head[at] = draw(VALUES)
    return head


@pytest.mark.thorough
@pytest.mark.scenario(68)
def test_no_head_ends_a_connection_or_goes_unanswered(tmp_path: Path) -> None:
    """Whatever whole frames a client sends, its next request is answered as if nothing had been."""
    loop = SimLoop()
    died: list[Any] = []
    loop.set_exception_handler(lambda _, context: died.append(context))

    async def start() -> tuple[InProcess, Raw]:
        cluster = InProcess(tmp_path)
        await cluster.start("a", complaint_interval_s=1000.0)
        return cluster, await Raw.connect(cluster)

    cluster, raw = loop.run_until_complete(start())

    @examples(300)
    @given(st.lists(st.tuples(st.integers(1, 12), heads(), st.sampled_from([b"", b"x" * 32])), min_size=1, max_size=5))
    def check(requests: list[tuple[int, Any, bytes]]) -> None:
        async def ask() -> None:
            raw.send(*(frame(op, head, body, 1000 + i) for i, (op, head, body) in enumerate(requests)))
            raw.send(frame(Op.READ, [0, 77, 0, 0, 100], correlation_id=PING))
            assert (await raw.reply(PING))[1] == [Status.OK, 0, [], -1]
            for i, (op, _, _) in enumerate(requests):
                if op not in (Op.PRESENT, Op.WAIT_LAC):  # those may have no answer, or not yet
                    assert (await raw.reply(1000 + i))[0] == op | wire.REPLY
            raw.forget_replies()

        loop.run_until_complete(ask())

    check()
    assert not died
    loop.run_until_complete(cluster.stop())
    loop.close()
