"""The ZooKeeper adapter: a connection, a session that outlives connections, and the store on top."""
