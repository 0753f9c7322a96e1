"""The defects. Most need an interleaving or a crash that only some seeds have.

`PLANTED`: each is a row of docs/explanation/track-record.md. `IMAGINED`: there never were these; they show that runs
would find defects of parts of the world that none of the others has to do with.
"""

from __future__ import annotations

from . import Planted

PLANTED = (
    Planted("Evicted state forgot entries and fence", "a request's own ledgers evicted", "crowd"),
    Planted("State loaded during checkpoint missed rows", "marks taken after the seal", "crowd"),
    Planted(
        "Lookup of several ledgers missed deletion",
        "ledger deleted while others are looked up",
        needs="few states in memory",
    ),
    Planted(
        "Late directory undid deletion", "a deletion forgotten that only a late directory's replay meets", "standard"
    ),
    Planted("Journal ending below mark counted as ended", "frames numbered below a mark", "storage"),
    Planted("New index forgot damaged journal", "what was lost forgotten by a rebuild", "storage"),
    Planted(
        "Rebuild denied entries of lost log",
        "a ledger that a rebuild found nothing of taken for one that was never here",
        "storage",
    ),
    Planted("Recycling left gap that counted as damage", "newer journal names gone before older ones", "storage"),
    Planted("Limbo stored as fence ended writer", "limbo is a fence to writers", needs="loss of disks"),
    Planted("Stranger's fence hit later ledger", "a fence is set whatever key the ledger has by now", "failover"),
    Planted("Later key decided earlier append", "keys count from their arrival", needs="strangers"),
    Planted(
        "Stranger's early key locked owner out",
        "the first key that is presented for a ledger stays",
        needs="strangers",
    ),
    Planted("Collection fenced id drawn and not created", "a drawn id counts as one whose ledger was deleted", "logs"),
    Planted(
        "Recovery with right key failed as unauthorised",
        "a key that a bookie asks for isn't presented right before the request",
        needs="duels + bookie.presented_ledgers_max",
    ),
    Planted(
        "Failed ensemble change acknowledged",
        "what was done during a change stays done though its bookies are replaced next",
        needs="replies lost at a change",
    ),
    Planted(
        "Change with lost reply counted as not stored",
        "a writer takes a change of its ensemble with an unknown outcome for one that was not stored",
        "failover",
    ),
    Planted(
        "Other writes with lost replies counted as not done",
        "a read-back that fails ends a write as an error, which says that nothing was written",
        needs="logs + replies lost",
    ),
    Planted(
        "Writer acknowledged during unknown outcome",
        "a writer that can't send its change again forgets that the first attempt may have been stored",
        needs="reply lost, then away",
    ),
    Planted(
        "Second `close` made unknown outcome failure",
        "a second close that sends nothing makes the first one certain",
        needs="calls of all kinds cancelled",
    ),
    Planted("Retried cookie deletion deleted new cookie", "a deletion of a cookie is tried again", "healing"),
    Planted(
        "Unknown or cancelled creation left unnamed ledger",
        "a ledger whose creation is cancelled stays",
        needs="calls of all kinds cancelled",
    ),
    Planted(
        "Refused append counted as certainly absent",
        "an append's outcome is what the error's class says",
        needs="replies lost at a change",
    ),
    Planted(
        "Cancelled append kept its place in window",
        "an append that was cancelled while it waited stays in the queue",
        needs="calls of all kinds cancelled + client.write_window_entries",
    ),
    Planted(
        "Cancelled append lost wakeup",
        "an append that is cancelled when it is given room keeps it",
        needs="calls of all kinds cancelled + client.write_window_entries",
    ),
    Planted(
        "Failed writer hung caller-id appends",
        "appends that wait are not told of a failure",
        needs="ids of the callers' choice",
    ),
    Planted("Old connection attempt counted as new one", "an attempt to connect that had begun before counts"),
    Planted(
        "Resent batches exceeded frame limit", "what is sent once more is not cut", needs="frames of different sizes"
    ),
    Planted(
        "Frames exceeded limit in HELLO",
        "a batch that is sent in pieces is accepted with the first",
        needs="frames of different sizes",
    ),
    Planted(
        "Read's deadline was missed by rounding",
        "the time of a read is compared with another sum than the one that was waited for",
    ),
    Planted(
        "Under-replication at `close` went unreported",
        "a bookie that takes entries again lacks nothing",
        needs="healing + creation while a bookie is away",
    ),
    Planted(
        "Rebuilding bookie counted as lost",
        "a bookie that rebuilds itself is worked off at once",
        needs="loss of disks",
    ),
    Planted(
        "Returned bookie's records went too early",
        "a bookie's return ends the marks of all of its ledgers",
        needs="healing",
    ),
    Planted(
        "Stuck ledger hid second lost bookie",
        "a ledger that has a mark is not looked at before that has gone",
        needs="healing",
    ),
    Planted(
        "Auditor's memory outlived manual recovery",
        "what is moved by hand is said in the first session alone",
        "healing",
    ),
    Planted(
        "Ledger created behind higher id got no record",
        "an id that a client still holds is settled by a listing",
        needs="healing",
    ),
    Planted("Moving registration hid limbo", "a bookie whose registration is gone counts as back", needs="healing"),
    Planted("Second irreplaceable bookie left record", "of two places that have nowhere to go one is stuck", "healing"),
    Planted(
        "Lost bookie that came back while its ledgers were recorded stayed in their records",
        "an auditor adds records before it says so",
        needs="healing + deaths at writes of the metadata",
    ),
    Planted("Decommissioned bookie's ledger got no copies", "bookies that nobody knows are nobody's", needs="drain"),
    Planted("Failed worker kept its locks", "the lock of a cancelled hand stays", needs="healing"),
    Planted(
        "Cancelled drain voided other record",
        "the mark of a bookie that is away is void when it isn't draining any more",
        needs="drain",
    ),
    Planted("Cancelled drain dropped records", "a bookie that stays after all is not verified", needs="drain"),
    Planted(
        "Late records ended writers of returned bookie",
        "a recovery doesn't look whether the bookie is back",
        needs="recovery by hand",
    ),
    Planted(
        "One loss of three ended writers",
        "an open ledger is closed though no bookie could take the place",
        "healing",
    ),
    Planted(
        "Small cluster never copied in place",
        "a bookie that lacks entries has to be replaced, whatever bookies there are",
        needs="healing + creation while a bookie is away",
    ),
    Planted("Thirty failing ledgers starved all others", "ledgers that fail take all hands", "healing"),
    Planted(
        "Failed integrity attempt ended writer",
        "one failed attempt of the integrity check ends a writer",
        needs="healing",
    ),
    Planted("Worker slept past postponed ledger", "a worker sleeps past what it has postponed", needs="healing"),
    Planted("`format` freed id about to be named", "those who move copies are not waited for", "healing"),
    Planted(
        "`integrity --now` on sound bookie ended writers",
        "a look through a bookie recovers what is open",
        needs="check by hand",
    ),
    Planted("Accepted loss reused positions", "a log goes on where a ledger ends of which a part was given up", "logs"),
    Planted("Two accepted losses made log unopenable", "gaps of a log that touch stay two", "logs"),
    Planted("Times fell behind empty ledger", "times go back with the next writer's clock", needs="logs + clock jump"),
    Planted(
        "Opening full log fenced, then failed", "an opener of a log doesn't look for room in its list", needs="logs"
    ),
    Planted(
        "Truncation ended tail with `ClientClosedError`",
        "a tail's position stays at what its consumer works on",
        needs="logs",
    ),
    Planted(
        "Resolved doubt still ended roll's writer",
        "a log goes back to its former ledger after a write that may have been made",
        needs="logs + reply lost, then away",
    ),
    Planted(
        "Failed next ledger left appends pending",
        "a next ledger is used though it has failed",
        needs="logs + client.log_roll_entries",
    ),
    Planted(
        "Late flush of log reported certainty",
        "a flush doesn't wait for the ledger before the present one",
        needs="logs",
    ),
    Planted(
        "Commit's unknown outcome locked consumer out",
        "a consumer doesn't know again what it has written",
        needs="logs + replies lost",
    ),
    Planted(
        "Consumer at gap got `TruncatedError`",
        "a consumer in front of a gap is taken for one that has something to read there",
        "logs",
    ),
    Planted(
        "`force` overtook append that waited at a bookie, which could lose it later, unnoticed",
        "force overtakes appends that a bookie has not answered",
        needs="deferred syncs",
    ),
    Planted(
        "Restored log named a ledger that was deleted during its backup, and could never be opened",
        "a restored log names a ledger that was deleted during its backup",
        needs="logs + restored from a backup",
    ),
    Planted(
        "Restored ledger could never be closed where one bookie had lost its key",
        "a bookie that has lost a ledger's key counts as not fenced",
        needs="rot in journals + restored from a backup",
    ),
)

IMAGINED = (
    Planted(
        "Upgrade passes over the earlier version's journal",
        "kinds of journal records numbered anew, and what has none of them passed over",
        needs="earlier version",
    ),
    Planted("Upgrade forgets fences", "the flag of a fence at another place in the index", needs="earlier version"),
    Planted(
        "Upgrade forgets losses",
        "the flag of a loss at another place in the index",
        needs="earlier version + loss of disks",
    ),
    Planted(
        "BookKeeper's bookie answers a fence that a power cut takes",
        "a fence for BookKeeper's clients answered before it is durable",
        needs="BookKeeper's protocol",
    ),
    Planted(
        "BookKeeper's bookie denies what it can't tell",
        "an entry that may be lost denied to BookKeeper's clients",
        needs="BookKeeper's protocol",
    ),
    Planted(
        "BookKeeper's bookie counts as denying whatever it answers",
        "an entry denied by whatever a BookKeeper bookie answers",
        needs="BookKeeper's protocol",
    ),
    Planted(
        "Deferred sync counts as done what was lost with a connection",
        "what is lost with a connection counts as synced",
        needs="deferred syncs",
    ),
    Planted(
        "Restored metadata are taken at their word where a ledger is closed",
        "a recovery of a restored ledger asks only the bookies that the metadata name",
        needs="restored from a backup",
    ),
    Planted(
        "Restored metadata are taken at their word where copies are",
        "bookies copy for a restored cluster only from those that the metadata name",
        needs="restored from a backup",
    ),
    Planted(
        "Bookie joins a restored cluster without limbo",
        "a bookie joins a restored cluster without limbo",
        needs="restored from a backup",
    ),
    Planted(
        "Ledgers created after a backup are collected",
        "a bookie collects ledgers that were created after the backup",
        needs="restored from a backup",
    ),
    Planted(
        "Restored cluster gives out ids again",
        "ids go on where they were in the backup",
        needs="restored from a backup",
    ),
)
