"""What control has done to the owners' jobs, by the scheduler's ids. Slurm has the rest."""

from sqlmodel import Field, SQLModel

from gleaner.control.queue.columns import BIG_ID, table


class Governed(SQLModel, table=True):
    """A job that was released and has not started, or that was told to give way and has not gone."""

    job: str = Field(primary_key=True)
    released_s: float | None
    at_top: bool
    told_s: float | None


class Told(SQLModel, table=True):
    """A job of an owner's was told to give way. What a ceiling of saves an hour counts."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: str
    at_s: float = Field(index=True)


GOVERNED = table(Governed)
TOLD = table(Told)
