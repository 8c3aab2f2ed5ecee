"""The runtime inside a rank: bootstrap, topology, engine, negotiation, backends, devices."""
