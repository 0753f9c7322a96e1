"""The client's side of bookies: connections, which of them to choose, and ensembles."""
