"""The same where every copy must acknowledge: nothing goes on before another bookie has taken the dead one's place."""

from workloads import Failure

WORKLOAD = Failure(
    "a bookie killed, Qa = 3: longest gap",
    ["--workload", "failover", "--size", "100", "--outstanding", "100", "--seconds", "2", "--ensemble", "3,3,3"],
    "longest_gap",
)
