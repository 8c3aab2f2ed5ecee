"""What runs inside a rank: bootstrap, topology, engine, negotiation, backends, devices."""
