------------------------------ MODULE Absent --------------------------------
(* A ledger that is created while bookies are absent (rule 51), until each of its bookies has all of it.

   All bookies are its ensemble and its write set, and the ones that are there when it is created don't fail: what fails
   afterwards is in `Ledger`. A decommissioning and the auditor go on beside it.                                      *)
EXTENDS Integers, FiniteSets

CONSTANTS Bookies, Ack, Entries, Moves, Off  \* `Moves`: how often bookies come and go

VARIABLES
  there,    \* the bookies that run
  cookie,   \* the bookies that the cluster knows
  drain,    \* the bookies that drain
  clear,    \* the bookies that a scan of all ledgers has found to be named by none
  plan,     \* [made, absent]: whom the client has chosen
  state,    \* "none", "open" or "closed"
  never,    \* the bookies that have never taken part in the ledger
  from,     \* of each bookie that was taken in: the first entry of the fragment that began with it
  written,  \* how many entries are acknowledged
  has,      \* of each bookie: its entries
  mark,     \* the bookies in the ledger's under-replication record
  moves

vars == <<there, cookie, drain, clear, plan, state, never, from, written, has, mark, moves>>
On(rule) == rule \notin Off
Enough(absent) ==
  LET n == Cardinality(Bookies \ absent)
  IN n >= Ack /\ n >= Cardinality(Bookies) - Ack + 1

Init ==
  /\ there = Bookies /\ cookie = Bookies /\ drain = {} /\ clear = {}
  /\ plan = [made |-> FALSE, absent |-> {}] /\ state = "none" /\ never = {}
  /\ from = [b \in Bookies |-> 0] /\ written = 0 /\ has = [b \in Bookies |-> {}] /\ mark = {} /\ moves = 0

\* --- bookies and operators

Leave(b) ==
  /\ moves < Moves /\ b \in there /\ (b \in never \/ ~plan.made)
  /\ there' = there \ {b} /\ moves' = moves + 1
  /\ UNCHANGED <<cookie, drain, clear, plan, state, never, from, written, has, mark>>

Come(b) ==
  /\ moves < Moves /\ b \in cookie \ there
  /\ there' = there \cup {b} /\ moves' = moves + 1
  /\ UNCHANGED <<cookie, drain, clear, plan, state, never, from, written, has, mark>>

Drain(b) ==
  /\ b \notin there /\ drain' = drain \cup {b}
  /\ UNCHANGED <<there, cookie, clear, plan, state, never, from, written, has, mark, moves>>

Scan(b) ==  \* after the draining has begun; a ledger that is there names all bookies
  /\ b \in drain \ there /\ state = "none" /\ clear' = clear \cup {b}
  /\ UNCHANGED <<there, cookie, drain, plan, state, never, from, written, has, mark, moves>>

Retire(b) ==
  /\ b \in clear \ there /\ cookie' = cookie \ {b} /\ drain' = drain \ {b}
  /\ UNCHANGED <<there, clear, plan, state, never, from, written, has, mark, moves>>

\* --- the client

Choose ==
  /\ state = "none" /\ ~plan.made
  /\ Bookies \ there \subseteq cookie \ drain
  /\ (On("51 enough") => Enough(Bookies \ there)) /\ Cardinality(there) >= Ack
  /\ plan' = [made |-> TRUE, absent |-> Bookies \ there]
  /\ UNCHANGED <<there, cookie, drain, clear, state, never, from, written, has, mark, moves>>

Create ==  \* one transaction
  /\ state = "none" /\ plan.made
  /\ (On("51 cookie") => plan.absent \subseteq cookie)
  /\ (On("51 drain") => plan.absent \cap drain = {})
  /\ state' = "open" /\ never' = plan.absent
  /\ mark' = IF On("51 record") THEN plan.absent ELSE {}
  /\ UNCHANGED <<there, cookie, drain, clear, plan, from, written, has, moves>>

Append ==  \* whoever takes part has the entry; one that has come and was not taken in may have it
  /\ state = "open" /\ written < Entries
  /\ \E S \in SUBSET there :
       /\ there \ never \subseteq S /\ Cardinality(S) >= Ack
       /\ has' = [b \in Bookies |-> IF b \in S THEN has[b] \cup {written} ELSE has[b]]
  /\ written' = written + 1
  /\ UNCHANGED <<there, cookie, drain, clear, plan, state, never, from, mark, moves>>

TakeIn(b) ==
  /\ state = "open" /\ b \in never \cap there
  /\ never' = never \ {b}
  /\ from' = [from EXCEPT ![b] = IF On("51 fragment") THEN written ELSE 0]
  /\ UNCHANGED <<there, cookie, drain, clear, plan, state, written, has, mark, moves>>

Close ==
  /\ state = "open" /\ state' = "closed"
  /\ UNCHANGED <<there, cookie, drain, clear, plan, never, from, written, has, mark, moves>>

\* --- workers and the auditor

Ended(b) == 0..(IF b \notin never THEN from[b] ELSE IF state = "closed" THEN written ELSE 0) - 1

Copy(b) ==
  /\ b \in mark \cap there
  /\ has' = [has EXCEPT ![b] = @ \cup Ended(b)]
  /\ UNCHANGED <<there, cookie, drain, clear, plan, state, never, from, written, mark, moves>>

Drop(b) ==
  /\ b \in mark \cap there /\ (b \notin never \/ state = "closed") /\ Ended(b) \subseteq has[b]
  /\ mark' = mark \ {b}
  /\ UNCHANGED <<there, cookie, drain, clear, plan, state, never, from, written, has, moves>>

Return(b) ==  \* for the auditor it was lost, and is back as it was
  /\ ~On("51 reason") /\ b \in mark \cap there
  /\ mark' = mark \ {b}
  /\ UNCHANGED <<there, cookie, drain, clear, plan, state, never, from, written, has, moves>>

Next ==
  \/ Choose \/ Create \/ Append \/ Close
  \/ \E b \in Bookies :
       \/ Leave(b) \/ Come(b) \/ Drain(b) \/ Scan(b) \/ Retire(b)
       \/ TakeIn(b) \/ Copy(b) \/ Drop(b) \/ Return(b)

\* --- invariants

Marked == state # "none" => \A b \in Bookies : 0..written - 1 \subseteq has[b] \/ b \in mark
Known == state # "none" => Bookies \subseteq cookie
Ends == state # "none" => Enough(plan.absent)
=============================================================================
