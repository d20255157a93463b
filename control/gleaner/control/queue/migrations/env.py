"""How Alembic reaches the database: over the connection that `engine.migrate` gives it, in its transaction."""

from alembic import context

from gleaner.control.queue.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite cannot alter a table in place
)
with context.begin_transaction():
    context.run_migrations()
