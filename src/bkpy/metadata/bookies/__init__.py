"""What the metadata store knows of bookies: registrations, cookies, ids, draining."""
