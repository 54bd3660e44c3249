# SPDX-License-Identifier: Apache-2.0
"""Sequences of requests to models. The same seed makes the same sequence."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

SEED = 19


class Request(NamedTuple):
    """`due` in seconds from the start."""

    due: float
    model: int


Demand = Callable[[float], list[Request]]   # takes a duration in seconds


def each(models: int, least: float, most: float) -> Demand:
    """Requests to each model, independently, with `least` to `most` seconds between two."""

    def asked(seconds: float) -> list[Request]:
        random, found = Random(SEED), []
        for model in range(models):
            due = random.uniform(0, most)
            while due < seconds:
                found.append(Request(due, model))
                due += random.uniform(least, most)
        return sorted(found)

    return asked


def zipf(models: int, apart: float, exponent: float) -> Demand:
    """A request every `apart` seconds, to model n with probability proportional to n**-exponent."""

    def asked(seconds: float) -> list[Request]:
        weights = [1 / (rank + 1) ** exponent for rank in range(models)]
        number = int(seconds / apart)
        chosen = Random(SEED).choices(range(models), weights, k=number)
        return [Request(index * apart, model) for index, model in enumerate(chosen)]

    return asked


def bursts(models: int, apart: float, number: int, within: float) -> Demand:
    """Every `apart` seconds `number` requests to one model, with `within` seconds between two."""

    def asked(seconds: float) -> list[Request]:
        return [
            Request(first.due + index * within, first.model)
            for first in zipf(models, apart, 0)(seconds) for index in range(number)]

    return asked
