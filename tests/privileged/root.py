"""The condition of tests that only root can run."""

import os

import pytest

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
