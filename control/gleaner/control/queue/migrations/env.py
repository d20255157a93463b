"""Alembic's connection to the database, which `database.migrate` passes within its transaction."""

from alembic import context

from gleaner.control.queue.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
)
with context.begin_transaction():
    context.run_migrations()
