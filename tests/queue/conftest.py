import pytest
from sqlalchemy import Engine
from tests.queue.queue_harness import QueueHarness


@pytest.fixture
def harness(queue_engine: Engine) -> QueueHarness:
    """Return an empty queue, once on each database."""
    return QueueHarness(queue_engine)
