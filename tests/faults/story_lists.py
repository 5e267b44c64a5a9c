"""All stories, by what is done to them."""

from typing import Any

from tests.faults import cache_cuts, process_stories, record_cuts, remote_cuts
from tests.faults.power_campaign import Story

STORIES: list[Story] = [*record_cuts.STORIES, *cache_cuts.STORIES, *remote_cuts.STORIES]
"""Those that feel power cuts."""
FAULTY: list[Story] = [*STORIES, *remote_cuts.WITHOUT_POWER_CUTS]
"""Those in which calls fail, or limits hold."""
KILLED: list[Any] = [*FAULTY, *process_stories.STORIES]
"""Those whose processes are killed."""
