------------------------------- MODULE Ledger -------------------------------
(* The life of one ledger: a writer, bookies, recoveries and workers that replace bookies of what has ended.

   Nothing is sent as a message. `sent` and `back` hold what a client has sent to a bookie, and a bookie takes any part
   of it at any later time, or never. What a bookie has said stays said, and whoever counts answers may count any of
   them. So every loss, delay, repetition and order of messages is among the behaviours, and so is every way to cut
   entries into batches. A compare and set of the metadata is one step.                                            *)
\* `(...) = TRUE`: TLC takes a disjunction in a step for several steps, of which there may be very many.
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Bookies, Recoveries, Off  \* `Off`: the names of the rules that are switched off

VARIABLES
  size,      \* [e, w, a]: ensemble size, write quorum, ack quorum
  meta,      \* [state, frags, last, closings]: what the metadata store holds
  w,         \* [state, frags, ids, lac]: the writer; `ids` are those it has sent, those up to `lac` are acknowledged
  sent,      \* of each bookie: the ids that the writer has sent to it
  back,      \* of each bookie: the ids that a recovery has sent to it
  has,       \* of each bookie: the ids that are durable there
  said,      \* of each bookie: the ids that it has acknowledged to the writer
  promised,  \* of each bookie: the ids that it has acknowledged to anybody
  denied,    \* of each bookie: the ids that it has denied to a recovery
  lied,      \* pairs <<bookie, id>>: denied though acknowledged before
  key,       \* of each bookie: "none", "right" or "wrong", the ledger's key as stored there
  fence,     \* of each bookie: "no", "right" or "wrong", by the key that it was asked for with
  told,      \* the bookies that have told an owner of the ledger that it is fenced there
  late,      \* the bookies that have taken an append after that
  limbo,     \* the bookies that can't tell what they may have had
  lost,      \* the bookies that have lost their disks
  rec        \* of each recovery: [state, snap, frags, base, next]

bookieVars == <<has, said, promised, denied, lied, key, fence, told, late, limbo, lost>>
vars == <<size, meta, w, sent, back, bookieVars, rec>>

On(rule) == rule \notin Off
Max(S) == CHOOSE x \in S : \A y \in S : y <= x

\* --- fragments and write sets

Share(id, ens) == {ens[((id + k) % size.e) + 1] : k \in 0..size.w - 1}
IndexOf(frags, id) == Max({i \in DOMAIN frags : frags[i].first <= id})
At(frags, id) == Share(id, frags[IndexOf(frags, id)].ens)
LastOf(frags) == frags[Len(frags)]

\* A new fragment takes the place of the last one if that has no entry.
Extended(frags, first, ens) ==
  IF LastOf(frags).first = first
  THEN [frags EXCEPT ![Len(frags)] = [first |-> first, ens |-> ens]]
  ELSE Append(frags, [first |-> first, ens |-> ens])

OnQuorum(id, frags, copies) == Cardinality({b \in At(frags, id) : id \in copies[b]}) >= size.a

Init(s) ==
  /\ size = s
  /\ meta = [state |-> "none", frags |-> <<>>, last |-> -1, closings |-> 0]
  /\ w = [state |-> "none", frags |-> <<>>, ids |-> {}, lac |-> -1]
  /\ sent = [b \in Bookies |-> {}] /\ back = sent
  /\ has = sent /\ said = sent /\ promised = sent /\ denied = sent
  /\ lied = {} /\ told = {} /\ late = {} /\ limbo = {} /\ lost = {}
  /\ key = [b \in Bookies |-> "none"] /\ fence = [b \in Bookies |-> "no"]
  /\ rec = [r \in Recoveries |-> [state |-> "none", snap |-> <<>>, frags |-> <<>>, base |-> -1, next |-> 0]]

\* --- the writer

Create(ens) ==  \* rule 10
  /\ meta.state = "none"
  /\ meta' = [meta EXCEPT !.state = "open", !.frags = <<[first |-> 0, ens |-> ens]>>]
  /\ w' = [w EXCEPT !.state = "open", !.frags = meta'.frags]
  /\ UNCHANGED <<size, sent, back, bookieVars, rec>>

Send(S) ==  \* a batch: ids of one write set or of several
  /\ w.state = "open" /\ S # {} /\ S \cap w.ids = {}
  /\ w' = [w EXCEPT !.ids = @ \cup S]
  /\ sent' = [b \in Bookies |-> sent[b] \cup {id \in S : b \in At(w.frags, id)}]
  /\ UNCHANGED <<size, meta, back, bookieVars, rec>>

Ack(n) ==  \* every id up to n is on its ack quorum, by the ensemble that is stored
  /\ w.state = "open" /\ n > w.lac /\ (w.lac + 1)..n \subseteq w.ids
  /\ \A id \in (w.lac + 1)..n :
       IF On("rule 3") THEN OnQuorum(id, w.frags, said)
       ELSE Cardinality({b \in Bookies : id \in said[b]}) >= size.a
  /\ w' = [w EXCEPT !.lac = n]
  /\ UNCHANGED <<size, meta, sent, back, bookieVars, rec>>

Change(ens, again) ==  \* rules 2, 3, 4: the metadata first; what is not acknowledged goes to the new ensemble
  \* `again`: acknowledged ids of striped batches that aren't as a whole: a batch is sent again as it was
  /\ w.state = "open" /\ again \subseteq w.ids
  /\ On("rule 2") => meta.state = "open"
  /\ LET base  == IF On("rule 2") THEN meta.frags ELSE w.frags
         frags == Extended(base, w.lac + 1, ens)
     IN /\ w' = [w EXCEPT !.frags = frags]
        /\ meta' = IF On("rule 2") THEN [meta EXCEPT !.frags = frags] ELSE meta
  /\ sent' = [b \in Bookies |-> sent[b] \cup {id \in w.ids : (id > w.lac \/ id \in again) /\ b \in Share(id, ens)}]
  /\ UNCHANGED <<size, back, bookieVars, rec>>

StoreChange ==  \* where rule 2 is off: the metadata, afterwards
  /\ ~On("rule 2") /\ w.state = "open" /\ meta.state = "open" /\ w.frags # meta.frags
  /\ meta' = [meta EXCEPT !.frags = w.frags]
  /\ UNCHANGED <<size, w, sent, back, bookieVars, rec>>

WriterCloses ==  \* rule 9
  /\ w.state = "open" /\ meta.state = "open"
  /\ meta' = [meta EXCEPT !.state = "closed", !.last = w.lac, !.closings = @ + 1]
  /\ w' = [w EXCEPT !.state = "ended"]
  /\ UNCHANGED <<size, sent, back, bookieVars, rec>>

\* --- bookies

Store(b, S) ==  \* an append becomes durable, and is acknowledged
  /\ S # {} /\ S \subseteq sent[b] /\ b \notin limbo
  /\ key[b] # "wrong" /\ fence[b] = "no"
  /\ key' = [key EXCEPT ![b] = "right"]
  /\ has' = [has EXCEPT ![b] = @ \cup S]
  /\ said' = [said EXCEPT ![b] = @ \cup S]
  /\ promised' = [promised EXCEPT ![b] = @ \cup S]
  /\ late' = IF b \in told THEN late \cup {b} ELSE late
  /\ UNCHANGED <<size, meta, w, sent, back, denied, lied, fence, told, limbo, lost, rec>>

Kept(b, S) ==  \* what a recovery or a worker has sent is taken whether there is a fence or not
  /\ S # {} /\ key[b] # "wrong"
  /\ key' = [key EXCEPT ![b] = "right"]
  /\ has' = [has EXCEPT ![b] = @ \cup S]
  /\ promised' = [promised EXCEPT ![b] = @ \cup S]
  /\ UNCHANGED <<size, meta, w, sent, back, said, denied, lied, fence, told, late, limbo, lost, rec>>


Ended(id) ==  \* of fragments that get no entry any more
  \/ meta.state = "closed" /\ id \in 0..meta.last
  \/ meta.state \in {"open", "recovery"} /\ id \in 0..LastOf(meta.frags).first - 1

Copyable(id) == Ended(id) /\ \E c \in Bookies : id \in has[c]  \* rule 27

StoreBack(b, S) == S \subseteq back[b] /\ Kept(b, S)
Copy(b, S) == (\A id \in S : Copyable(id)) = TRUE /\ Kept(b, S)
StoreEither(b, S) ==  \* who sees only the bookie can't tell which
  (\A id \in S : id \in back[b] \/ Copyable(id)) = TRUE /\ Kept(b, S)

Fence(b) ==  \* rule 20: {key, fence} are durable together, and then the bookie says so
  /\ meta.state \in {"recovery", "closed"}
  /\ IF key[b] = "wrong" /\ (has[b] # {} \/ ~On("rule 45"))
     THEN key' = key /\ fence' = [fence EXCEPT ![b] = "wrong"] /\ ~On("rule 45")
     ELSE key' = [key EXCEPT ![b] = "right"] /\ fence' = [fence EXCEPT ![b] = "right"]
  /\ told' = told \cup {b}
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, denied, lied, late, limbo, lost, rec>>

StrangerFences(b) ==  \* with a key of its own, where the ledger was never seen
  /\ key[b] = "none"
  /\ key' = [key EXCEPT ![b] = "wrong"] /\ fence' = [fence EXCEPT ![b] = "wrong"]
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, denied, lied, told, late, limbo, lost, rec>>

GiveWay(b) ==  \* rule 45: a wrong key, and the fence that came with it, where nothing is stored under it
  /\ key[b] = "wrong" /\ has[b] = {}
  /\ key' = [key EXCEPT ![b] = "right"] /\ fence' = [fence EXCEPT ![b] = "no"]
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, denied, lied, told, late, limbo, lost, rec>>

Deny(b, S) ==  \* rules 13, 16, 20: a negative to a recovery, which has fenced, of who can tell
  /\ S # {} /\ S \cap has[b] = {}
  /\ (On("rule 13") => fence[b] = "right" \/ (~On("rule 45") /\ fence[b] = "wrong")) = TRUE
  /\ On("limbo") => b \notin limbo
  /\ denied' = [denied EXCEPT ![b] = @ \cup S]
  /\ lied' = lied \cup {<<b, id>> : id \in S \cap promised[b]}
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, key, fence, told, late, limbo, lost, rec>>

Restart(b) ==  \* without a loss, that changes something only where the fence was not durable
  /\ ~On("rule 20") /\ fence[b] # "no"
  /\ fence' = [fence EXCEPT ![b] = "no"]
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, denied, lied, key, told, late, limbo, lost, rec>>

Lose(b) ==  \* the disks are gone, and the bookie starts anew under its id
  /\ has' = [has EXCEPT ![b] = {}]
  /\ key' = [key EXCEPT ![b] = "none"] /\ fence' = [fence EXCEPT ![b] = "no"]
  /\ limbo' = IF On("limbo") THEN limbo \cup {b} ELSE limbo
  /\ lost' = lost \cup {b}
  /\ UNCHANGED <<size, meta, w, sent, back, said, promised, denied, lied, told, late, rec>>

Named(b) == {id \in 0..meta.last : b \in At(meta.frags, id)}

EndLimbo(b) ==  \* rule 34
  /\ b \in limbo
  /\ On("rule 34") => meta.state = "closed" /\ Named(b) \subseteq has[b]
  /\ limbo' = limbo \ {b}
  /\ UNCHANGED <<size, meta, w, sent, back, has, said, promised, denied, lied, key, fence, told, late, lost, rec>>

\* --- recoveries

Mark ==  \* rule 11
  /\ meta.state = "open"
  /\ meta' = [meta EXCEPT !.state = "recovery"]
  /\ UNCHANGED <<size, w, sent, back, bookieVars, rec>>

Covered(ens) ==  \* rule 12: no ack quorum of any write set is left unfenced
  IF On("rule 12")
  THEN \A id \in 0..size.e - 1 : Cardinality(Share(id, ens) \ told) < size.a
  ELSE told # {}

\* What fenced bookies know to be acknowledged, or the fragment's beginning; with `lac` off, what was only sent.
Known == (IF On("lac") THEN 0..w.lac ELSE w.ids)

BeginWith(r, c, frags) ==  \* `frags`: as the change to IN_RECOVERY left them (rule 15)
  /\ rec[r].state = "none"
  /\ LET last == LastOf(frags)
     IN /\ Covered(last.ens)
        /\ \/ c = IF On("rule 14") THEN last.first - 1 ELSE -1
           \/ c \in Known /\ (On("rule 14") => c >= last.first)
  /\ rec' = [rec EXCEPT ![r] =
       [state |-> "reading", snap |-> frags, frags |-> frags, base |-> c, next |-> c + 1]]
  /\ UNCHANGED <<size, meta, w, sent, back, bookieVars>>

Begin(r, c) == meta.state = "recovery" /\ BeginWith(r, c, meta.frags)

ReadFrom(r) == IF On("rule 15") THEN rec[r].snap ELSE rec[r].frags

Find(r, n) ==  \* a verified copy of each entry up to n; they are written back to their write sets (rule 17)
  /\ rec[r].state = "reading" /\ n >= rec[r].next
  /\ (\A id \in rec[r].next..n : \E b \in At(ReadFrom(r), id) : id \in has[b]) = TRUE
  /\ back' = [b \in Bookies |-> back[b] \cup {id \in rec[r].next..n : b \in At(rec[r].frags, id)}]
  /\ rec' = [rec EXCEPT ![r].next = n + 1]
  /\ UNCHANGED <<size, meta, w, sent, bookieVars>>

Missing(r) ==  \* rule 16
  LET id == rec[r].next
      no == {b \in At(ReadFrom(r), id) : id \in denied[b]}
  IN Cardinality(no) >= IF On("rule 16") THEN size.w - size.a + 1 ELSE 1

ChangeInRecovery(r, c, ens) ==  \* rule 18: in memory only
  /\ rec[r].state = "reading" /\ c \in rec[r].base..rec[r].next - 1
  /\ \A id \in rec[r].base + 1..c : OnQuorum(id, rec[r].frags, has)
  /\ rec' = [rec EXCEPT ![r].frags = Extended(@, c + 1, ens)]
  /\ back' = [b \in Bookies |-> back[b] \cup {id \in c + 1..rec[r].next - 1 : b \in Share(id, ens)}]
  /\ UNCHANGED <<size, meta, w, sent, bookieVars>>

\* Rule 19: what was swapped meanwhile in earlier fragments is kept.
Rebased(r) == LET n == Len(rec[r].snap) - 1
              IN SubSeq(meta.frags, 1, n) \o SubSeq(rec[r].frags, n + 1, Len(rec[r].frags))

Close(r) ==
  /\ rec[r].state = "reading" /\ Missing(r)
  /\ On("rule 17") => \A id \in rec[r].base + 1..rec[r].next - 1 : OnQuorum(id, rec[r].frags, has)
  /\ On("rule 19") => meta.state = "recovery"
  /\ meta' = [state |-> "closed", frags |-> Rebased(r), last |-> rec[r].next - 1, closings |-> meta.closings + 1]
  /\ UNCHANGED <<size, w, sent, back, bookieVars>>

RecoveryCloses(r) == Close(r) /\ rec' = [rec EXCEPT ![r].state = "ended"]

\* --- workers

IdsOf(i) == meta.frags[i].first..(IF i < Len(meta.frags) THEN meta.frags[i + 1].first - 1 ELSE meta.last)

Swap(i, old, new) ==  \* rules 27, 33, 35
  /\ meta.state # "none" /\ i \in DOMAIN meta.frags
  /\ LET ens == meta.frags[i].ens
         members == {ens[k] : k \in DOMAIN ens}
     IN /\ old \in members /\ new \notin members
        /\ (On("rule 33") => meta.state = "closed" \/ i < Len(meta.frags)) = TRUE
        /\ On("rule 27") => \A id \in IdsOf(i) : old \in Share(id, ens) => id \in has[new]
        /\ meta' = [meta EXCEPT !.frags[i].ens = [k \in DOMAIN ens |-> IF ens[k] = old THEN new ELSE ens[k]]]
  /\ UNCHANGED <<size, w, sent, back, bookieVars, rec>>

\* --- invariants

I1 == meta.state = "closed" => w.lac <= meta.last
I3 == meta.closings <= 1
I6 == /\ \A i \in 1..Len(meta.frags) - 1 : meta.frags[i].first < meta.frags[i + 1].first
      /\ \A i \in DOMAIN meta.frags : \A j, k \in DOMAIN meta.frags[i].ens :
           j # k => meta.frags[i].ens[j] # meta.frags[i].ens[k]
\* I2 and I7: what was acknowledged, and all that a closed ledger has, is on its ack quorum by the metadata.
I7 == lost = {} => \A id \in 0..(IF meta.state = "closed" THEN meta.last ELSE w.lac) : OnQuorum(id, meta.frags, has)
I8 == late = {}
I9 == lied = {}
=============================================================================
