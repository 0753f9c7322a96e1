"""A bookie is killed under load, and two of three copies acknowledge: how long nobody gets an answer."""

from workloads import Failure

WORKLOAD = Failure(
    "a bookie killed, Qa = 2: longest gap",
    ["--workload", "failover", "--size", "100", "--outstanding", "100", "--seconds", "2", "--ensemble", "3,3,2"],
    "longest_gap",
)
