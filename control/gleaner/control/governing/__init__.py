"""Governing the owners' partitions: OMFS on a live cluster (`policy.governing` decides, `steward` has the rights)."""
