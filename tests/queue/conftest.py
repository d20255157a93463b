import pytest
from sqlalchemy import Engine
from tests.queue.scene import Scene


@pytest.fixture
def scene(queue_engine: Engine) -> Scene:
    """An empty queue, once on each database."""
    return Scene(queue_engine)
