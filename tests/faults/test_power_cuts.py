"""Power cuts in stories of stores and caches: some of the states that `make torture` judges, and what it has found."""

import random

import pytest
from tests.faults import cache_cuts, record_cuts, remote_cuts
from tests.faults.power import Disk, Tree
from tests.faults.power_campaign import Story, campaign
from tests.faults.recording import Recorder
from tests.slow import either

pytestmark = pytest.mark.forks

SMALL = [*record_cuts.STORIES, *(record_cuts.RandomStory(seed) for seed in range(either(1, 40)))]
LARGE = [*cache_cuts.STORIES, *remote_cuts.STORIES]


@pytest.mark.parametrize("story", [*SMALL, *LARGE], ids=lambda story: story.name)
def test_some_states(story: Story) -> None:
    found = campaign(story, either(5 if story in SMALL else 2, 200), seed=1)
    assert not found.failures, found.failures[0]
    assert found.states
    assert found.operations > 10


def every(recorder: Recorder, count: int = 60) -> list[Tree]:
    """States that a power cut after all operations may leave."""
    disk = Disk()
    for operation in recorder.operations:
        disk.apply(operation)
    return disk.every(1000) or [disk.any(random.Random(seed)) for seed in range(count)]
