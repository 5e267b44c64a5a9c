from dataclasses import replace

from tests.pipeline.making import assigned
from tests.pipeline.profiles import budget_for, profile

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.planner import plan


def kept(value: int) -> int:
    return value


def pipeline(samples: int, steps: int, **caches: str) -> Pipeline:
    pipe = Pipeline(range(samples))
    for number in range(1, steps + 1):
        pipe = pipe.step(kept, name=f"step{number}", cache=caches.get(f"step{number}", "auto"))
    return pipe


def planned(samples: int = 10_000, **told: object) -> ws.Plan:
    found = profile([0, 0.001, 0.003], [100, 1000, 4000], counts=(samples,))
    return plan(pipeline(samples, 2)._chain, found, **{"memory": "17MB", "disk": "9MB", "folder": ".", **told})


def test_buckets_have_their_own_counts() -> None:
    source = [bytes(1 + number % 2) + bytes([number // 8, number % 8]) for number in range(1000)]
    found = profile([0, (0.001, 0.01)], [(1, 2), (1000, 1000)], counts=(500, 500))
    found = replace(found, edges=(4,))
    pipe = Pipeline(source).step(kept, name="step1")
    made = plan(pipe._chain, found, memory=budget_for(300_000))
    places = assigned(made, pipe)
    # What costs ten times as much for the same bytes goes first.
    assert made.counts[0][0] == (places[::2] >= 0).sum() == 0
    assert made.counts[0][1] == (places[1::2] >= 0).sum() in range(290, 301)
