----------------------------- MODULE LedgerModel -----------------------------
(* Small constants for `Ledger`: all behaviours within a budget of entries, changes, losses, strangers and swaps.  *)
EXTENDS Ledger

CONSTANTS E, W, A, Entries, Changes, Losses, Strangers, Swaps

VARIABLE spent  \* [changes, losses, strangers, swaps]

all == <<vars, spent>>
First == [i \in 1..E |-> i]
Limit == [changes |-> Changes, losses |-> Losses, strangers |-> Strangers, swaps |-> Swaps]

Spend(what) == spent[what] < Limit[what] /\ spent' = [spent EXCEPT ![what] = @ + 1]

\* One bookie of the ensemble gives its place to another one.
Others(ens) ==
  LET members == {ens[k] : k \in DOMAIN ens}
  IN {[ens EXCEPT ![k] = b] : k \in DOMAIN ens, b \in Bookies \ members}

ModelInit == Init([e |-> E, w |-> W, a |-> A]) /\ spent = [c \in DOMAIN Limit |-> 0]

Free ==
  \/ Create(First)
  \/ Cardinality(w.ids) < Entries /\ Send({Cardinality(w.ids)})
  \/ \E n \in 0..Entries - 1 : Ack(n)
  \/ StoreChange \/ WriterCloses \/ Mark
  \/ \E b \in Bookies :
       \/ \E id \in sent[b] \ said[b] : Store(b, {id})
       \/ \E id \in back[b] \ has[b] : StoreBack(b, {id})
       \/ b \notin told /\ meta.state = "recovery" /\ Fence(b)
       \/ GiveWay(b) \/ EndLimbo(b) \/ Restart(b)
       \/ \E r \in Recoveries : rec[r].state = "reading" /\ rec[r].next \notin denied[b] /\ Deny(b, {rec[r].next})
       \/ Swaps > 0 /\ \E id \in 0..meta.last : id \notin has[b] /\ Copy(b, {id})
  \/ \E r \in Recoveries :
       \/ \E c \in -1..Entries - 1 : Begin(r, c)
       \/ Find(r, rec[r].next)
       \/ RecoveryCloses(r)

Next ==
  \/ Free /\ UNCHANGED spent
  \/ /\ Spend("changes")
     /\ \/ w.state = "open" /\ \E ens \in Others(LastOf(w.frags).ens), again \in {{}, {w.lac}} :
          Change(ens, again)
        \/ \E r \in Recoveries : rec[r].state = "reading" /\ \E ens \in Others(LastOf(rec[r].frags).ens) :
             \E c \in rec[r].base..rec[r].next - 1 : ChangeInRecovery(r, c, ens)
  \/ Spend("losses") /\ \E b \in Bookies : Lose(b)
  \/ Spend("strangers") /\ \E b \in Bookies : StrangerFences(b)
  \/ Spend("swaps") /\ \E i \in DOMAIN meta.frags, old, new \in Bookies : Swap(i, old, new)

Spec == ModelInit /\ [][Next]_all
=============================================================================
