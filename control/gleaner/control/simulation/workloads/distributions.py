"""Distributions of sizes, run times and what else is drawn, as a scenario names them."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gleaner.control.simulation.workload import Seconds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Constant(_Table):
    """Always the same."""

    kind: Literal["constant"] = "constant"
    value: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """So many of them."""
        return np.full(count, self.value)


class Exponential(_Table):
    """Without memory."""

    kind: Literal["exponential"] = "exponential"
    mean: float = Field(gt=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """So many of them."""
        return rng.exponential(self.mean, count)


class LogNormal(_Table):
    """Its logarithm is normal; `mean` and `deviation` are of the values themselves."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    deviation: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """So many of them."""
        variance = math.log1p((self.deviation / self.mean) ** 2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


class Uniform(_Table):
    """Anywhere between `low` and `high`, both included where whole numbers are asked for."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(ge=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _low_is_low(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, which is more than high, {self.high:g}")
        return self

    def draw(self, count: int, rng: Generator) -> Seconds:
        """So many of them."""
        return rng.uniform(self.low, self.high, count)


Distribution = Annotated[Constant | Exponential | LogNormal | Uniform, Field(discriminator="kind")]


def whole(distribution: Distribution, count: int, rng: Generator) -> Seconds:
    """Drawn and rounded to whole numbers, at least 1. The ends of a uniform one are as likely as what is between."""
    if isinstance(distribution, Uniform):
        distribution = Uniform(low=max(distribution.low - 0.5, 0), high=distribution.high + 0.5)
        return np.clip(np.rint(distribution.draw(count, rng)), 1, math.floor(distribution.high))
    return np.maximum(np.rint(distribution.draw(count, rng)), 1)
