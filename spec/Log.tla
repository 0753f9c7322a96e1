--------------------------------- MODULE Log ---------------------------------
(* A named log: writers that take it over from each other, each with a chain of ledgers behind one list.

   A ledger is what `Ledger` shows it to be: once it is recovered nothing more is acknowledged in it, and all that was
   acknowledged stays. So the ledgers here are plain sequences, and a recovery of one is one step.                 *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Writers, Ledgers, Positions, Off

VARIABLES
  list,    \* the log's list: ledgers in order, in the metadata
  begins,  \* of each ledger: the first position that the list gives it
  state,   \* of each ledger: "none", "open", "closed"
  told,    \* of each ledger: how many of its entries the writer was told to be on their ack quorums
  sent,    \* of each ledger: how many of its entries have been sent
  log,     \* positions that a user was told to be appended, by ledger: how many of each
  writer   \* of each: [state, seen, current, old]: `seen` is the list that it has read

vars == <<list, begins, state, told, sent, log, writer>>

On(rule) == rule \notin Off
LastTwo(s) == {s[i] : i \in {k \in DOMAIN s : k > Len(s) - 2}}
Nobody == [state |-> "out", seen |-> <<>>, current |-> 0, old |-> 0]
Fresh == CHOOSE l \in Ledgers : state[l] = "none" /\ \A k \in Ledgers : state[k] = "none" => l <= k

Init ==
  /\ list = <<>> /\ writer = [x \in Writers |-> Nobody]
  /\ begins = [l \in Ledgers |-> 0] /\ told = begins /\ sent = begins /\ log = begins
  /\ state = [l \in Ledgers |-> "none"]

Look(x) ==  \* rule 31: read the list
  /\ writer[x].state = "out"
  /\ writer' = [writer EXCEPT ![x] = [state |-> "opening", seen |-> list, current |-> 0, old |-> 0]]
  /\ UNCHANGED <<list, begins, state, told, sent, log>>

\* Recovery closes a ledger at any point from what is acknowledged to what was sent.
Recover(x) ==
  /\ writer[x].state = "opening"
  /\ \E l \in (IF On("rule 31") THEN LastTwo(writer[x].seen)
               ELSE IF writer[x].seen = <<>> THEN {} ELSE {writer[x].seen[Len(writer[x].seen)]}) :
       /\ state[l] = "open"
       /\ state' = [state EXCEPT ![l] = "closed"]
       /\ \E n \in told[l]..sent[l] : told' = [told EXCEPT ![l] = n]
  /\ UNCHANGED <<list, begins, sent, log, writer>>

Ready(x) == \A l \in (IF On("rule 31") THEN LastTwo(writer[x].seen)
                      ELSE IF writer[x].seen = <<>> THEN {} ELSE {writer[x].seen[Len(writer[x].seen)]}) :
              state[l] = "closed"

RECURSIVE End(_)
End(s) == IF s = <<>> THEN 0 ELSE begins[s[Len(s)]] + told[s[Len(s)]]

\* Rule 41: where the last but one closed short of the last one's first position, the last one is dropped.
Short(s) == Len(s) >= 2 /\ begins[s[Len(s) - 1]] + told[s[Len(s) - 1]] < begins[s[Len(s)]]
Kept(s) == IF Short(s) /\ On("rule 41 drop") THEN SubSeq(s, 1, Len(s) - 1) ELSE s

Serve(x) ==  \* create a ledger, and append it to the list in one compare and set
  /\ writer[x].state = "opening" /\ Ready(x) /\ \E l \in Ledgers : state[l] = "none"
  /\ IF list = writer[x].seen
     THEN LET l == Fresh kept == Kept(list)
          IN /\ list' = Append(kept, l)
             /\ begins' = [begins EXCEPT ![l] = End(kept)]
             /\ state' = [state EXCEPT ![l] = "open"]
             /\ writer' = [writer EXCEPT ![x].state = "serving", ![x].current = l]
     ELSE writer' = [writer EXCEPT ![x] = Nobody] /\ UNCHANGED <<list, begins, state>>
  /\ UNCHANGED <<told, sent, log>>

Send(x) ==
  /\ writer[x].state = "serving"
  /\ LET l == writer[x].current
     IN begins[l] + sent[l] < Positions /\ state[l] = "open" /\ sent' = [sent EXCEPT ![l] = @ + 1]
  /\ UNCHANGED <<list, begins, state, told, log, writer>>

Stored(l) ==  \* one entry more is on its ack quorum: nothing more is in a ledger that is closed
  /\ state[l] = "open" /\ told[l] < sent[l]
  \* Rule 41: until the old ledger's end is acknowledged, the new one acknowledges nothing.
  /\ On("rule 41") => \A x \in Writers : writer[x].current = l /\ writer[x].old # 0
                        => told[writer[x].old] = sent[writer[x].old]
  /\ told' = [told EXCEPT ![l] = @ + 1]
  /\ UNCHANGED <<list, begins, state, sent, log, writer>>

Tell(x, l) ==  \* the user is told; rule 32: in the new ledger only after all of the old one
  /\ writer[x].state = "serving" /\ l \in {writer[x].current, writer[x].old} \ {0}
  /\ log[l] < told[l] /\ log' = [log EXCEPT ![l] = @ + 1]
  /\ (On("rule 32") /\ l = writer[x].current /\ writer[x].old # 0) => log[writer[x].old] = sent[writer[x].old]
  /\ UNCHANGED <<list, begins, state, told, sent, writer>>

Roll(x) ==  \* rules 32, 41: no next roll until the previous ledger is closed
  /\ writer[x].state = "serving" /\ \E l \in Ledgers : state[l] = "none"
  /\ On("rule 32 two") => writer[x].old = 0
  /\ list # <<>> /\ list[Len(list)] = writer[x].current
  /\ LET l == Fresh
     IN /\ list' = Append(list, l)
        /\ begins' = [begins EXCEPT ![l] = begins[writer[x].current] + sent[writer[x].current]]
        /\ state' = [state EXCEPT ![l] = "open"]
        /\ writer' = [writer EXCEPT ![x].current = l, ![x].old = writer[x].current]
  /\ UNCHANGED <<told, sent, log>>

CloseOld(x) ==
  /\ writer[x].state = "serving" /\ writer[x].old # 0
  /\ LET l == writer[x].old
     IN state[l] = "open" /\ told[l] = sent[l] /\ log[l] = told[l] /\ state' = [state EXCEPT ![l] = "closed"]
  /\ writer' = [writer EXCEPT ![x].old = 0]
  /\ UNCHANGED <<list, begins, told, sent, log>>

Next ==
  \/ \E x \in Writers : Look(x) \/ Recover(x) \/ Serve(x) \/ Send(x) \/ Roll(x) \/ CloseOld(x)
                        \/ \E l \in Ledgers : Tell(x, l)
  \/ \E l \in Ledgers : Stored(l)

Spec == Init /\ [][Next]_vars

\* --- invariants

Listed(l) == \E i \in DOMAIN list : list[i] = l
\* What a user was told is in the log, and stays there.
Durable == \A l \in Ledgers : log[l] > 0 => Listed(l) /\ log[l] <= told[l]
\* What a reader may read has no hole behind it. It reads what is acknowledged of an open ledger, and the rest once closed.
Readable(l) == log[l] > 0 \/ (state[l] = "open" /\ told[l] > 0)
Dense == \A i \in 1..Len(list) - 1 :
           (\E j \in i + 1..Len(list) : Readable(list[j])) => begins[list[i]] + told[list[i]] = begins[list[i + 1]]
\* At most the last two ledgers are open.
AtMostTwoOpen == \A i \in DOMAIN list : i < Len(list) - 1 => state[list[i]] = "closed"
\* Of two writers only the newer one has anything acknowledged.
OneWriter == \A x, y \in Writers : x # y /\ writer[x].state = "serving" /\ writer[y].state = "serving" =>
               \/ state[writer[x].current] = "closed" \/ state[writer[y].current] = "closed"
=============================================================================
