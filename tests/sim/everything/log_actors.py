"""The users of one log: writers that take it from each other, and consumers."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError, LogFencedError, LogLockedError, NoSuchLogError
from tests.sim.coverage_marks import LOG_DELETED, LOG_TAKEN
from tests.sim.log_users import PASSWORD, LogUsers

from .oracle import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.client.client import Client

    from .plan import JSON, Actor
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


async def doom_log(stage: Stage, actor: Actor) -> None:
    """A log that is written, read, and deleted meanwhile, perhaps more than once; in the end there is none."""
    options, rng = actor.options, stage.schedule.stream(actor.key)
    name = options["log"]

    async def write(client: Client) -> None:
        for _ in range(options["turns"]):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an ack quorum of 1 is what is wanted
                    log = await client.open_log(
                        name,
                        create=True,
                        wait=rng.random() < 0.8,
                        password=PASSWORD,
                        **dict(zip(("ensemble_size", "write_quorum", "ack_quorum"), options["sizes"], strict=True)),
                        roll_entries=rng.choice((1, 3, 10)),
                    )
                for _ in range(rng.randrange(1, 20)):
                    await log.append(name.encode())
                    await asyncio.sleep(rng.random() * 0.05)
                await log.close()
            except BookKeeperError as error:
                stage.world.record("log", "of a doomed one", type(error).__name__)
                await asyncio.sleep(rng.random() * 0.2)

    async def read(client: Client) -> None:
        while True:
            try:
                reader = await client.read_log(name, password=PASSWORD)
                async for entry in reader.tail():
                    if entry.data != name.encode():
                        raise Violation("logs dense", f"{entry.data!r} was read from log {name}")
            except BookKeeperError as error:
                stage.world.record("log", "of a doomed one", f"reader {type(error).__name__}")
            await asyncio.sleep(rng.random() * 0.2)

    async def delete(client: Client) -> None:
        """Until it is certain that there is none."""
        while True:
            try:
                await client.delete_log(name)
            except NoSuchLogError:
                return
            except BookKeeperError as error:
                stage.world.record("log", "of a doomed one", f"deletion {type(error).__name__}")
                await asyncio.sleep(0.2)

    async def until_done(host: JSON, act: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        while not await stage.on(host, act):
            pass

    writing = asyncio.ensure_future(until_done(options["host"], write))
    reading = asyncio.ensure_future(until_done(options["other"], read))
    try:
        await asyncio.sleep(options["after_s"])
        await until_done(options["other"], delete)
        await writing
        await until_done(options["other"], delete)
        if reading.done():
            reading.result()
    finally:
        writing.cancel()
        reading.cancel()
    stage.world.marks[LOG_DELETED] += 1
