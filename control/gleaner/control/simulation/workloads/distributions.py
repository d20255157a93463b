"""Distributions of sizes, run times and other drawn values, as a scenario names them."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gleaner.control.simulation.workload import Seconds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Constant(_Table):
    """A distribution whose value is always the same."""

    kind: Literal["constant"] = "constant"
    value: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return np.full(count, self.value)


class Exponential(_Table):
    """The exponential distribution, which is without memory."""

    kind: Literal["exponential"] = "exponential"
    mean: float = Field(gt=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return rng.exponential(self.mean, count)


class LogNormal(_Table):
    """A distribution whose logarithm is normal. `mean` and `deviation` are those of the values themselves."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    deviation: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        variance = math.log1p((self.deviation / self.mean) ** 2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


class Uniform(_Table):
    """Values anywhere between `low` and `high`. Both ends are included where whole numbers are asked for."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(ge=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _low_is_low(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, which is more than high, {self.high:g}")
        return self

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return rng.uniform(self.low, self.high, count)


Distribution = Annotated[Constant | Exponential | LogNormal | Uniform, Field(discriminator="kind")]


def whole(distribution: Distribution, count: int, rng: Generator) -> Seconds:
    """Return drawn values, rounded to whole numbers of at least 1.

    The ends of a uniform distribution are as likely as the values between them.
    """
    if isinstance(distribution, Uniform):
        distribution = Uniform(low=max(distribution.low - 0.5, 0), high=distribution.high + 0.5)
        return np.clip(np.rint(distribution.draw(count, rng)), 1, math.floor(distribution.high))
    return np.maximum(np.rint(distribution.draw(count, rng)), 1)
