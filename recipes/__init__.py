"""Data only: the shipped recipes (*.yaml), the bases they extend (base/) and example topologies (topologies/)."""
