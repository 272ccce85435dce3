"""Data only: shipped recipes (*.yaml), the bases they extend (base/), example topologies (topologies/)."""
