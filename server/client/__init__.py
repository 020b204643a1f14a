"""A client of fourstep.v1 for people: a terminal that talks to a worker."""
