"""Emptying nodes for maintenance (`policy.draining` says how, `steward` has the rights)."""
