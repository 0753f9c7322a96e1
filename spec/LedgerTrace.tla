----------------------------- MODULE LedgerTrace -----------------------------
(* Which behaviour of `Ledger` explains a trace? One step for each event; a trace that none explains ends in a deadlock.

   The module `Traces` is written by tests/spec/traces.py: a sequence of traces, each with the sizes and the events of
   one ledger of a run.                                                                                            *)
EXTENDS Ledger, Traces

VARIABLES trace, at, marked  \* `marked`: the fragments as the change to IN_RECOVERY left them

TraceInit ==
  \E t \in DOMAIN AllTraces : trace = t /\ at = 1 /\ marked = <<>> /\ Init(AllTraces[t].size)

e == AllTraces[trace].events[at]
\* Who sees only the metadata can't tell which recovery has closed the ledger. None ends by it, to be on the safe side.
Closers(last, frags) ==
  {r \in Recoveries : /\ rec[r].state = "reading" /\ rec[r].next - 1 = last
                      /\ Missing(r) /\ Rebased(r) = frags}

Explained ==
  CASE e.a = "create"   -> Create(e.ens)
    [] e.a = "send"     -> Send(e.s)
    [] e.a = "ack"      -> Ack(e.n)
    [] e.a = "change"   -> Change(e.ens, e.again) /\ LastOf(meta'.frags).first = e.n
    [] e.a = "store"    -> Store(e.b, e.s)
    [] e.a = "back"     -> StoreEither(e.b, e.s)
    [] e.a = "fence"    -> Fence(e.b)
    [] e.a = "deny"     -> Deny(e.b, e.s)
    [] e.a = "mark"     -> Mark
    [] e.a = "begin"    -> LastOf(marked) = e.last /\ BeginWith(e.r, e.n, marked)
    [] e.a = "find"     -> Find(e.r, e.n)
    [] e.a = "spare"    -> ChangeInRecovery(e.r, e.n, e.ens)
    [] e.a = "end"      -> WriterCloses /\ meta'.last = e.n
    [] e.a = "close"    -> /\ Closers(e.n, e.frags) # {}
                           /\ Close(CHOOSE r \in Closers(e.n, e.frags) : TRUE) /\ rec' = rec
    [] e.a = "swap"     -> Swap(e.i, e.old, e.new)

TraceNext ==
  IF at > Len(AllTraces[trace].events)
  THEN UNCHANGED <<vars, trace, at, marked>>
  ELSE /\ Explained
       /\ at' = at + 1 /\ trace' = trace
       /\ marked' = IF e.a = "mark" THEN meta.frags ELSE marked
=============================================================================
