"""The features that a seed has or has not, how likely each is, and what it adds to a plan (swarm testing).

A feature that joins comes last, and draws from streams of its own: then seeds without it keep their runs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.sim.buggify import KIB, LARGEST_ENTRY_BYTES

from .drawing import DEATHS, DISKS, LINKS, SIZES, STORE, Drawing, Feature
from .plan import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .plan import JSON, Actor, Plan

FEATURES: dict[str, Feature] = {}


def feature(name: str, chance: float, *needs: str) -> Callable[[Callable[[Drawing], None]], Callable[[Drawing], None]]:
    """Register a feature that adds something by itself."""

    def register(draw: Callable[[Drawing], None]) -> Callable[[Drawing], None]:
        FEATURES[name] = Feature(chance, frozenset(needs), draw)
        return draw

    return register


def nothing_more(drawing: Drawing) -> None:
    """The feature is looked up where it matters."""


for _name, _chance in {
    "duels": 0.6,
    "readers": 0.4,
    "tails": 0.4,
    "deletes": 0.4,
    "moves": 0.15,
    "logs": 0.35,
    "healing": 0.3,
    "directories added": 0.2,
    "journal kept": 0.5,
    "extreme settings": 0.5,
    "directories checked": 0.2,
}.items():
    feature(_name, _chance)(nothing_more)


@feature("restarts", 0.2)
def _restarts(drawing: Drawing) -> None:
    rng = drawing.stream("actors-restarts")
    for n in range(rng.randrange(1, 4 if drawing.long else 2)):
        some = drawing.stream(f"restart-{n}")
        drawing.add_actor("restart", some, {"bookie": drawing.bookie(some)})


@feature("strangers", 0.15)
def _strangers(drawing: Drawing) -> None:
    drawing.add_actor("stranger", drawing.stream("stranger"), {}, early=0.1)


@feature("drain", 0.4, "healing")
def _drain(drawing: Drawing) -> None:
    rng = drawing.stream("drain")
    cancelled = round(rng.random() ** 2 * 5, 3) if rng.random() < 0.3 else None
    leaves = rng.random() < 0.6
    if cancelled is None and "accepted losses" in drawing.features:
        cancelled = 20.0  # a ledger whose only copies are lost never leaves the bookie
    drawing.add_actor(
        "drain", rng, {"bookie": drawing.other_bookie(rng), "cancelled_after_s": cancelled, "leaves": leaves}
    )


@feature("growth", 0.3, "healing")
def _growth(drawing: Drawing) -> None:
    rng = drawing.stream("growth")
    drawing.add_actor("growth", rng, {"rebalances": rng.random() < 0.7})


@feature("loss of a host", 0.25, "healing")
def _loss_of_a_host(drawing: Drawing) -> None:
    drawing.add_fault("host-lost", "host lost", drawing.stream("loss of a host"), longest_s=2.0)


@feature("loss of disks", 0.35, "healing")
def _loss_of_disks(drawing: Drawing) -> None:
    if "loss of a host" not in drawing.features:  # one of the two, of one bookie
        drawing.add_fault("disks-lost", "disks lost", drawing.stream("loss of disks"), longest_s=2.0)


@feature("rot", 0.15)
def _rot(drawing: Drawing) -> None:
    rng = drawing.stream("rot")
    for n in range(rng.choice((1, 3))):
        drawing.add_fault(f"rot-{n + 1}", "rot", rng)


@feature("duplicated connections", 0.12)
def _duplicated_connections(drawing: Drawing) -> None:
    rng = drawing.stream("duplicated connections")
    for n in range(rng.choice((1, 2))):
        options: dict[str, JSON] = {
            "host": drawing.host(rng, ("client", "client", "worker", "bookie")),
            "late_s": rng.choice((0.001, 0.1, 1.0, 5.0)),
        }
        drawing.add_fault(f"duplicates-{n + 1}", "duplicated connections", rng, longest_s=3.0, options=options)


@feature("lagging followers", 0.15)
def _lagging_followers(drawing: Drawing) -> None:
    rng = drawing.stream("lagging followers")
    for n in range(rng.choice((1, 2, 3))):
        options: dict[str, JSON] = {
            "host": drawing.host(rng, ("client", "worker", "bookie")),
            "lag_s": rng.choice((0.01, 0.2, 1.0, 5.0)),
        }
        drawing.add_fault(f"lag-{n + 1}", "lagging follower", rng, longest_s=8.0, options=options)


@feature("older copy of the metadata", 0.1)
def _older_copy(drawing: Drawing) -> None:
    drawing.add_fault("older-copy", "copy taken", drawing.stream("older copy"))


@feature("clock rates", 0.15)
def _clock_rates(drawing: Drawing) -> None:
    rng = drawing.stream("clock rates")
    drawing.shape["clock_rates"] = {name: rng.choice((0.8, 0.99, 1.0, 1.01, 1.25)) for name in drawing.hosts}


@feature("creation while a bookie is away", 0.12)
def _creation_while_a_bookie_is_away(drawing: Drawing) -> None:
    """Ledgers on all bookies, each begun when one of them has just died."""
    if drawing.features & {"drain", "loss of a host"}:  # of which one may never come back
        return
    bookies = drawing.bookies
    # The check of the replicas finds what nobody has recorded: without it the records alone have to do.
    drawing.shape["checks_replicas"] = drawing.stream("checks of replicas").random() < 0.5
    for n in range(2):
        rng = drawing.stream(f"creation-{n}")
        options: dict[str, JSON] = {
            "host": drawing.client(rng),
            "sizes": [bookies, bookies, bookies - 1],
            "appends": rng.randrange(5, 60),
            "batch_max": rng.choice((1, 5)),
            "pause_s": rng.choice((0.05, 0.3)),
            "end": rng.choice(("close", "close", "leave", "hold")),
        }
        writer = drawing.add_actor("writer", rng, options)
        before_s, lasts_s = rng.uniform(0.01, 0.5), rng.uniform(0.5, 4.0)
        drawing.add_death(f"away-{n + 1}", max(0.0, writer.at_s - before_s), lasts_s, drawing.bookie(rng))
        duel = drawing.stream(f"creation-duel-{n}")
        if duel.random() < 0.4:
            drawing.add_actor("duel", duel, {"host": drawing.client(duel), "of": writer.key})


@feature("accepted losses", 0.5, "healing", "loss of a host")
def _accepted_losses(drawing: Drawing) -> None:
    """Ledgers that one bookie acknowledges alone, of which the lost host may have had the only copies."""
    for n in range(2):
        rng = drawing.stream(f"fragile-{n}")
        options: dict[str, JSON] = {
            "host": drawing.client(rng),
            "sizes": rng.choice(([2, 2, 1], [1, 1, 1])),
            "appends": rng.randrange(5, 60),
            "batch_max": rng.choice((1, 5)),
            "pause_s": rng.choice((0.05, 0.3)),
            "end": rng.choice(("leave", "leave", "hold", "close")),
        }
        drawing.add_actor("writer", rng, options, early=0.3)


@feature("long absences", 0.5, "healing", "creation while a bookie is away")
def _long_absences(drawing: Drawing) -> None:
    """A ledger is begun and closed without a bookie, before an auditor takes this one for lost; then it comes back."""
    if drawing.features & {"drain", "loss of a host"}:
        return
    rng = drawing.stream("long absences")
    session_timeout_s = drawing.shape["session_timeout_s"]
    assert isinstance(session_timeout_s, float)
    away_s = rng.random() * drawing.storm_s * 0.3
    at_s = round(away_s + session_timeout_s + rng.uniform(0.1, 4.0), 4)
    writer = _add_wide_writer(
        drawing, rng, drawing.bookies - 1, end="close", appends=rng.randrange(2, 20), pause_s=0.01
    )
    drawing.actors[-1] = dataclasses.replace(writer, at_s=at_s)
    # An auditor that is elected while it is away finds the ledger closed.
    drawing.add_death(
        "long-away", away_s, at_s - away_s + session_timeout_s + rng.uniform(3.0, 8.0), drawing.bookie(rng)
    )
    for host in drawing.hosts:
        if host.startswith("worker") and rng.random() < 0.8:
            drawing.faults.append(Fault(f"{host}-away", "worker dies", round(at_s - 0.1, 4), 2.0, {"host": host}))


@feature("acknowledged by one", 0.4, "creation while a bookie is away")
def _acknowledged_by_one(drawing: Drawing) -> None:
    """A ledger on all bookies, each of which acknowledges alone: it is not created without one of them."""
    if drawing.features & {"drain", "loss of a host", "loss of disks", "rot"}:  # which could have the only copy
        return
    rng = drawing.stream("acknowledged by one")
    writer = _add_wide_writer(drawing, rng, 1)
    drawing.add_death("one-away", max(0.0, writer.at_s - 0.2), rng.uniform(0.5, 3.0), drawing.bookie(rng))


def _add_wide_writer(drawing: Drawing, rng: Random, ack_quorum: int, **more: JSON) -> Actor:
    """Of a ledger on all bookies."""
    options: dict[str, JSON] = {
        "host": drawing.client(rng),
        "sizes": [drawing.bookies, drawing.bookies, ack_quorum],
        "appends": rng.randrange(5, 60),
        "batch_max": rng.choice((1, 5)),
        "pause_s": rng.choice((0.05, 0.3)),
        "end": rng.choice(("close", "leave", "hold")),
        **more,
    }
    return drawing.add_actor("writer", rng, options)


@feature("no journal", 0.2, "healing")
def _no_journal(drawing: Drawing) -> None:
    """The unlucky bookie keeps in memory what it acknowledges, and loses it with its process."""
    if not drawing.features & {"accepted losses", "acknowledged by one"}:  # of which it could have the only copy
        drawing.shape["no_journal"] = True


@feature("rot in journals", 0.15, "healing")
def _rot_in_journals(drawing: Drawing) -> None:
    if not drawing.features & {"accepted losses", "acknowledged by one"}:
        drawing.add_fault("journal-rot", "rot in a journal", drawing.stream("rot in journals"))


@feature("rot in indexes", 0.15, "healing")
def _rot_in_indexes(drawing: Drawing) -> None:
    drawing.add_fault("index-rot", "rot in an index", drawing.stream("rot in indexes"))


@feature("format", 0.8, "healing", "growth")
def _format(drawing: Drawing) -> None:
    """Of a bookie that is then in doubt of what it had. Two of these may be an ack quorum of a ledger that is open."""
    if drawing.features & {"loss of a host", "loss of disks", "no journal", "rot in journals", "rot in indexes"}:
        return
    rng = drawing.stream("format")
    drawing.add_actor("format", rng, {"after_s": round(rng.random() ** 2 * 3, 3)}, early=0.3)


@feature("earlier version", 0.15)
def _earlier_version(drawing: Drawing) -> None:
    """Some bookies begin with the code of version 0.2.0; today's takes over the directories, however it ended.

    A bookie that loses its disks comes back with that code; today's takes over while it still lacks what it had.
    """
    rng = drawing.stream("earlier version")
    numbers = rng.sample(range(drawing.bookies), rng.randrange(1, drawing.bookies + 1))
    lives: dict[JSON, JSON] = {number: rng.choice((1, 1, 2)) for number in numbers}
    lost = next((fault for fault in drawing.faults if fault.kind == "disks lost"), None)
    unlucky = drawing.shape["unlucky"]
    if lost is not None:
        lives[unlucky] = 3
    drawing.shape["earlier"] = [[number, count] for number, count in lives.items()]
    for number in lives:
        some = drawing.stream(f"upgrade-{number}")
        options: dict[str, JSON] = {"bookie": number, "how": some.choice(("stop", "crash", "power cut"))}
        upgrade = drawing.add_actor("upgrade", some, options)
        if lost is not None and number == unlucky:
            at_s = round(lost.at_s + lost.lasts_s + some.random(), 4)
            drawing.actors[-1] = dataclasses.replace(upgrade, at_s=at_s)


@feature("BookKeeper's protocol", 0.12)
def _bookkeepers_protocol(drawing: Drawing) -> None:
    """A second cluster, with BookKeeper's protocol: its ledgers, their users, its faults."""
    if "older copy of the metadata" in drawing.features:  # which no such bookie notices
        return
    drawing.shape["second_cluster"] = True
    of_bookkeeper: dict[str, JSON] = {"of_bookkeeper": True}
    for n in range(3 if drawing.long else 2):
        rng = drawing.stream(f"bookkeeper-{n}")
        options: dict[str, JSON] = {
            "host": drawing.client(rng),
            "sizes": rng.choice(SIZES[:3]),
            "appends": rng.randrange(20, 600 if drawing.long else 80),
            "batch_max": rng.choice((1, 5, 20)),
            "pause_s": rng.choice((0.01, 0.05, 0.3)),
            "end": rng.choice(("close", "close", "leave", "hold")),
        }
        writer = drawing.add_actor("writer", rng, {**options, **of_bookkeeper}, early=0.3)
        for kind, chance in {"duel": 0.4, "reader": 0.4, "tail": 0.4, "deletion": 0.2}.items():
            some = drawing.stream(f"bookkeeper-{kind}-{n}")
            if some.random() < chance:
                drawing.add_actor(kind, some, {"host": drawing.client(some), "of": writer.key, **of_bookkeeper})
    rng = drawing.stream("bookkeeper faults")
    for n in range(rng.randrange(5, 15) if drawing.long else rng.choice((0, 1, 2, 3))):
        some = drawing.stream(f"bookkeeper-fault-{n}")
        kind = some.choice((*DEATHS, *DISKS, *LINKS, *STORE, "blackout"))
        of_fault: dict[str, JSON] = {**drawing.fault_options(kind, some), "bookie": some.randrange(3), **of_bookkeeper}
        if "host" in of_fault:
            of_fault["host"] = some.choice((drawing.client(some), f"bk-{some.randrange(3) + 1}"))
        drawing.add_fault(f"bookkeeper-fault-{n + 1}", kind, some, longest_s=4.0, options=of_fault)
    rng = drawing.stream("bookkeeper losses")
    if rng.random() < 0.4:
        drawing.shape["bookkeeper_without_journal"] = number = rng.randrange(3)
        death = rng.choice(("crash", "power cut"))
        loss: dict[str, JSON] = {"bookie": number, **of_bookkeeper}
        drawing.add_fault("bookkeeper-loss", death, rng, longest_s=2.0, options=loss)
    rng = drawing.stream("bookkeeper fences")
    if rng.random() < 0.5:
        drawing.add_actor("duel", rng, {"host": drawing.client(rng), "of": writer.key, **of_bookkeeper})
        cut: dict[str, JSON] = {"after_s": rng.choice((0.0, 0.0002, 0.001)), **of_bookkeeper}
        drawing.faults.append(Fault("bookkeeper-fence", "power cut at a fence", 0.0, drawing.storm_s, cut))


@feature("re-replication switched off", 0.25, "healing")
def _switched_off(drawing: Drawing) -> None:
    """Now and then, also in the middle of what auditors and workers do."""
    rng = drawing.stream("switched off")
    turns: list[JSON] = [
        [round(rng.random() ** 2 * 3, 3), round(rng.random() ** 2 * 3, 3)] for _ in range(rng.choice((1, 2, 4)))
    ]
    drawing.add_actor("switch", rng, {"turns": turns})


@feature("recovery by hand", 0.25, "healing")
def _recovery_by_hand(drawing: Drawing) -> None:
    """An operator takes a bookie for lost that is down, and comes back while its ledgers are copied, or later."""
    rng = drawing.stream("recovery by hand")
    session_timeout_s = drawing.shape["session_timeout_s"]
    assert isinstance(session_timeout_s, float)
    # Of ledgers whose only copies are lost, workers and the recovery try in turn whether it is so: that takes minutes.
    number = drawing.other_bookie(rng) if "accepted losses" in drawing.features else drawing.bookie(rng)
    recovery = drawing.add_actor("recovery by hand", rng, {"bookie": number})
    lasts_s = round(session_timeout_s + rng.random() ** 2 * 5, 4)
    drawing.put_fault(Fault("down-for-hand", "crash", recovery.at_s, lasts_s, {"bookie": number}))


@feature("checks by hand", 0.2, "healing")
def _checks_by_hand(drawing: Drawing) -> None:
    rng = drawing.stream("checks by hand")
    drawing.add_actor("check by hand", rng, {"bookie": drawing.bookie(rng), "times": rng.choice((1, 3))})


@feature("calls of all kinds cancelled", 0.3)
def _calls_of_all_kinds_cancelled(drawing: Drawing) -> None:
    """Creations and closes too, again and again, and where writers have little room."""
    rng = drawing.stream("calls of all kinds cancelled")
    drawing.add_actor("impatience", rng, {"host": drawing.client(rng), "times": rng.choice((2, 10, 30))}, early=0.2)
    if rng.random() < 0.5:
        drawing.bounds["client.write_window_entries"] = rng.choice((1, 2, 5))


@feature("deaths at writes of the metadata", 0.3)
def _deaths_at_writes_of_the_metadata(drawing: Drawing) -> None:
    """Between two steps of whatever takes more than one."""
    rng = drawing.stream("deaths at writes of the metadata")
    for n in range(rng.choice((1, 2, 3))):
        options: dict[str, JSON] = {
            "host": drawing.host(rng, ("worker", "worker", "client", "bookie")),
            "nth": rng.choice((1, 2, 3, 5, 8, 13, 30)),
        }
        at_s = round(rng.random() * drawing.storm_s, 4)
        drawing.put_fault(
            Fault(f"death-at-a-write-{n + 1}", "death at a write of the metadata", at_s, drawing.storm_s, options)
        )


@feature("deferred syncs", 0.2)
def _deferred_syncs(drawing: Drawing) -> None:
    """A ledger whose entries are acknowledged before they are on disk, and forced now and then."""
    rng = drawing.stream("deferred syncs")
    writer = _add_special_writer(drawing, rng, forces=rng.choice((0.1, 0.5, 1.0)), caller_ids=rng.random() < 0.2)
    if rng.random() < 0.5:  # a bookie dies before it has synced what it acknowledged
        slow: dict[str, JSON] = {"bookie": drawing.bookie(rng)}
        dies_s, death = round(writer.at_s + rng.random() * 2, 4), rng.choice(("crash", "power cut"))
        drawing.put_fault(Fault("slow-syncs", "slow disk", writer.at_s, 3.0, slow))
        drawing.put_fault(Fault("death-before-a-sync", death, dies_s, round(rng.random(), 4), slow))


@feature("ids of the callers' choice", 0.2)
def _ids_of_the_callers_choice(drawing: Drawing) -> None:
    _add_special_writer(drawing, drawing.stream("ids of the callers' choice"), caller_ids=True)


@feature("readers of all kinds", 0.25)
def _readers_of_all_kinds(drawing: Drawing) -> None:
    for actor in [actor for actor in drawing.actors if actor.kind == "writer" and "of_bookkeeper" not in actor.options]:
        rng = drawing.stream(f"prober-{actor.key}")
        if rng.random() < 0.5:
            drawing.add_actor("prober", rng, {"host": drawing.client(rng), "of": actor.key})


@feature("frames of different sizes", 0.15)
def _frames_of_different_sizes(drawing: Drawing) -> None:
    """Bookies take larger or smaller frames than others, and another size when they have been started again."""
    rng = drawing.stream("frames of different sizes")
    sizes = (LARGEST_ENTRY_BYTES + 64 * KIB, 100 * KIB, 128 * KIB, 256 * KIB)
    drawing.shape["frame_bytes"] = [rng.choice(sizes) for _ in range(drawing.bookies)]
    for _ in range(2):
        options: dict[str, JSON] = {"bookie": drawing.bookie(rng), "frame_bytes": rng.choice(sizes)}
        drawing.add_actor("restart", rng, options)


@feature("few states in memory", 0.15)
def _few_states_in_memory(drawing: Drawing) -> None:
    """More small ledgers than a bookie remembers, some of which are deleted."""
    rng = drawing.stream("few states in memory")
    drawing.bounds["bookie.ledger_states_max"] = rng.choice((1, 2, 3))
    for n in range(3):
        some = drawing.stream(f"small-{n}")
        writer = _add_writer(drawing, some, some.randrange(2, 15))
        if some.random() < 0.6:
            drawing.add_actor("deletion", some, {"host": drawing.client(some), "of": writer.key})


@feature("replies lost at a change", 0.2)
def _replies_lost_at_a_change(drawing: Drawing) -> None:
    """A client loses requests and replies of the metadata right after a bookie's death, when it changes ensembles."""
    rng = drawing.stream("replies lost at a change")
    at_s = round(rng.random() * drawing.storm_s, 4)
    drawing.put_fault(
        Fault("death-at-a-change", "crash", at_s, round(rng.random() * 2, 4), {"bookie": drawing.bookie(rng)})
    )
    lost_s = round(at_s + rng.random() ** 2, 4)
    drawing.put_fault(
        Fault("lost-at-a-change", "replies lost", lost_s, round(rng.random() * 2, 4), {"host": drawing.client(rng)})
    )


@feature("racks", 0.2)
def _racks(drawing: Drawing) -> None:
    """Clients and auditors spread copies over them, as far as there are enough."""
    rng = drawing.stream("racks")
    drawing.shape["racks"] = [rng.choice(("near", "near", "far", "default")) for _ in range(drawing.bookies)]


@feature("logs deleted", 0.2)
def _logs_deleted(drawing: Drawing) -> None:
    rng = drawing.stream("logs deleted")
    options: dict[str, JSON] = {
        "log": "doomed",
        "host": drawing.client(rng),
        "other": drawing.client(rng),
        "sizes": rng.choice(SIZES[:3]),
        "turns": rng.choice((1, 3, 6)),
        "after_s": round(rng.random() * 2, 4),
    }
    drawing.add_actor("doomed log", rng, options, early=0.5)


@feature("visitors", 0.2)
def _visitors(drawing: Drawing) -> None:
    """Clients that are closed while they write."""
    for n in range(2):
        rng = drawing.stream(f"visitor-{n}")
        visitor = _add_writer(drawing, rng, rng.randrange(5, 60), kind="visitor", stays_s=round(rng.random() ** 2, 4))
        drawing.add_company(visitor.key)


@feature("restored from a backup", 0.15)
def _restored_from_a_backup(drawing: Drawing) -> None:
    """The metadata are lost in the end, or in the middle of everything."""
    if drawing.features & {"older copy of the metadata", "BookKeeper's protocol", "earlier version"}:
        return
    rng = drawing.stream("restored from a backup")
    at_s = round(rng.random() ** 2 * drawing.storm_s * 0.6, 4)
    drawing.faults.append(Fault("backup", "backup made", at_s, 0.0, {}))
    drawing.shape["lost_in_the_storm"] = rng.random() < 0.5
    if drawing.stream("one that may be lost for ever").random() < 0.5:
        drawing.shape["bookies"] = int(drawing.shape["bookies"]) + 1  # type: ignore[arg-type]
    # What the backup then has wrong.
    for n in range(2):
        some = drawing.stream(f"moved-{n}")
        writer = _add_writer(drawing, some, some.randrange(5, 40), sizes=[2, 2, 2], pause_s=0.01, end="close")
        drawing.add_actor("move", some, {"host": drawing.client(some), "of": writer.key, "moves_all": True})
    dies_s = round(at_s + rng.random() * 1.5, 4)
    death = Fault("death-after-backup", "crash", dies_s, round(rng.random() * 2, 4), {"bookie": drawing.bookie(rng)})
    drawing.put_fault(death)


@feature("journals changed", 0.15)
def _journals_changed(drawing: Drawing) -> None:
    """Of a bookie that was stopped in order, by `bkpy bookie cookie`."""
    rng = drawing.stream("journals changed")
    drawing.add_actor("journals", rng, {"bookie": drawing.bookie(rng), "times": rng.choice((1, 2, 4))})


@feature("imports", 0.5, "BookKeeper's protocol")
def _imports(drawing: Drawing) -> None:
    """Of the second cluster's ledgers into the first one."""
    rng = drawing.stream("imports")
    for _ in range(rng.choice((1, 2, 2)) if "second_cluster" in drawing.shape else 0):
        drawing.add_actor("import", rng, {"host": drawing.client(rng)}, early=0.5)


@feature("directories moved", 0.15)
def _directories_moved(drawing: Drawing) -> None:
    """Of a bookie that is down, to other disks."""
    rng = drawing.stream("directories moved")
    drawing.add_actor("directories", rng, {"bookie": drawing.bookie(rng), "times": rng.choice((1, 2, 4))})


def _add_special_writer(drawing: Drawing, rng: Random, **more: JSON) -> Actor:
    """With the company that other writers have."""
    writer = _add_writer(drawing, rng, rng.randrange(20, 600 if drawing.long else 80), **more)
    drawing.add_company(writer.key)
    return writer


def _add_writer(drawing: Drawing, rng: Random, appends: int, *, kind: str = "writer", **more: JSON) -> Actor:
    options: dict[str, JSON] = {
        "host": drawing.client(rng),
        "sizes": rng.choice(SIZES),
        "appends": appends,
        "batch_max": rng.choice((1, 5, 20)),
        "pause_s": rng.choice((0.01, 0.05, 0.3)),
        "end": rng.choice(("close", "close", "leave", "hold")),
        **more,
    }
    return drawing.add_actor(kind, rng, options, early=0.3)


def draw_plan(seed: int, size: str) -> Plan:
    return Drawing(seed, size, FEATURES).plan()
