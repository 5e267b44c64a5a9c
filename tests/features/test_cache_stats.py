"""F14: hits, misses, bytes, seconds saved."""

import json

import torch

import warmstore as ws
from warmstore.features.keyed.usage_counters import UsageCounters, read_usage


def test_hits_and_misses_are_counted_by_sample(cached):
    module = cached()
    x = torch.rand(4, 2)
    module(x, cache_ids=[1, 2, 3, 4])
    module(x, cache_ids=[1, 2, 5, 5])
    stats = module.cache.stats()
    assert (stats.hits, stats.misses) == (2, 6)
    assert stats.hit_rate == 0.25
    assert (stats.entries, stats.pending) == (0, 5)
    assert stats.bytes_read == 2 * 2 * 4
    module.cache.flush()
    stats = module.cache.stats()
    assert (stats.entries, stats.pending) == (5, 0)
    on_disk = sum(path.stat().st_size for path in module.cache.path.rglob("*") if path.is_file())
    assert stats.bytes == on_disk > 0


def test_seconds_saved_are_remembered_over_runs(tmp_path, cached):
    module = cached()
    module(torch.rand(4, 2), cache_ids=range(4))
    cost = module.cache.stats().computed_seconds
    assert cost > 0
    assert module.cache.stats().seconds_saved == 0
    module.cache.close()
    with ws.FeatureCache(tmp_path, "id") as cache:
        cache.get_batch([0, 1])
        assert cache.stats().computed_seconds == 0
        assert abs(cache.stats().seconds_saved - cost / 2) < 1e-9


def test_cost_adds_up_and_damage_costs_only_the_estimate(tmp_path):
    path = tmp_path / "cost.json"
    for _ in range(2):
        cost = UsageCounters(path)
        cost.add(3.0, 2)
        cost.add(hits=1)
        cost.save()
        cost.save()
    whole = path.read_text()
    assert json.loads(whole).items() >= {"seconds": 6.0, "samples": 4, "hits": 2, "misses": 0}.items()
    path.write_text('{"seconds": 6.0, "samples": 4}')  # as earlier versions wrote it
    assert UsageCounters(path).in_all().per_sample == 1.5
    damages = [whole.replace('"samples": 4', '"samples": 5'), "[" * 100_000, '{"seconds": 1, "samples": 1e999}']
    for damaged in ("{", "[]", '{"seconds": "x"}', '{"seconds": 1, "samples": null}', *damages):
        path.write_text(damaged)
        assert UsageCounters(path).in_all().per_sample == 0


def test_hits_are_remembered_over_runs_and_threads(cached):
    for _ in range(2):
        module = cached()
        module(torch.ones(4, 2), cache_ids=range(4))
        module(torch.ones(4, 2), cache_ids=range(2, 6))
        module.cache.close()
    usage = read_usage(module.cache.path / "cost.json")
    assert (usage.hits, usage.misses, usage.samples) == (2 + 8, 6, 6)


def test_no_lookup_is_no_hit_rate(tmp_path):
    assert ws.FeatureCache(tmp_path, "id").stats().hit_rate == 0
