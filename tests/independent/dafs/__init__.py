"""A client of the dafs protocol, written from its specification alone."""
