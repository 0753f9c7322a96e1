"""The users of one log: writers that take it from each other, and consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, LogFencedError, LogLockedError
from tests.sim.coverage_marks import LOG_TAKEN
from tests.sim.log_users import LogUsers

from .oracle import Violation

if TYPE_CHECKING:
    from bkpy.client.client import Client

    from .plan import Actor
    from .stage import Stage


def users_of(stage: Stage, actor: Actor) -> LogUsers:
    """Those of the actor's log."""
    name, options = actor.options["log"], actor.options
    if name not in stage.logs:
        stage.logs[name] = LogUsers(stage.world, name, options["sizes"], options["retention_s"])
    return stage.logs[name]


async def write_log(stage: Stage, actor: Actor) -> None:
    """Open the log, append, lose it to another, and again; a process that died comes back."""
    users, options = users_of(stage, actor), actor.options
    rng = stage.schedule.stream(actor.key)
    host = stage.world.hosts[options["host"]]
    turns = iter(range(1 << 30))
    appended = 0

    async def act(client: Client) -> None:
        nonlocal appended
        while appended < options["appends"] and not stage.ended.is_set():
            try:
                log = await users.open(client, rng)
            except (LogLockedError, LogFencedError):
                await asyncio.sleep(rng.random())
                continue
            except BookKeeperError as error:
                host.record("log not opened", type(error).__name__)
                await asyncio.sleep(0.1 + rng.random() * 0.3)
                continue
            stage.world.marks[LOG_TAKEN] += 1
            tale = users.account.begin(f"{actor.key}.{next(turns)}")
            try:
                await users.write_log(host, log, tale, rng, options["appends"] - appended)
            finally:
                appended += len(tale.appended)
            await asyncio.sleep(rng.random() ** 2)

    while not await stage.on(options["host"], act):
        pass


async def settle(users: LogUsers, client: Client) -> None:
    """Write on when all is well, close, and look at everything."""
    try:
        await users.settle(client)
    except AssertionError as error:
        raise Violation("logs dense", str(error)) from error


async def consume(stage: Stage, actor: Actor) -> None:
    """Read the whole log, and commit now and then, until it is cancelled."""
    name = actor.options["log"]
    host = stage.world.hosts[actor.options["host"]]

    async def act(client: Client) -> None:
        users = stage.logs[name]
        try:
            await users.follow(host, client)
        except AssertionError as error:
            raise Violation("consumers exact", str(error)) from error

    while name not in stage.logs and not stage.ended.is_set():
        await asyncio.sleep(0.1)
    if name in stage.logs:
        while not await stage.on(actor.options["host"], act):
            pass
