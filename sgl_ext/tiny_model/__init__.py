"""Builders of small models with the structure of real ones."""
