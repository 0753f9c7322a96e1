"""A cluster on this machine: ZooKeeper and bookies as child processes, for tests, demonstrations and development."""

from bkpy.local.cluster import LocalBookie, LocalCluster

__all__ = ["LocalBookie", "LocalCluster"]
