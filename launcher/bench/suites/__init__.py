"""The suites: pure functions from settings to waves."""
