"""Models of sequences, sets and graphs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.program import Compile, Step, infers, mlp, program, state, trains
from benchmarks.corpus.vision import Encoder, ViT


class CausalBlock(nn.Module):
    mask: Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), mlp(width)
        self.heads = heads
        self.register_buffer("mask", torch.tril(torch.ones(context, context, dtype=torch.bool)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (
            one.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for one in self.attend(self.norm1(x)).split(c, 2)
        )
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = weights.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 16, context: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(CausalBlock(width, 2, context) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert tokens.size(1) <= self.positions.num_embeddings, "too long"
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@program()
def gpt(compile: Compile) -> Step:
    """A GPT with tied weights that returns its loss."""
    model, tokens = GPT(), torch.randint(0, 64, (2, 17))
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        logits, loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        return logits.detach(), loss.detach(), state(model)

    return step


class BERT(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(64, width, padding_idx=0), nn.Embedding(2, width)
        self.norm, self.blocks = nn.LayerNorm(width), nn.Sequential(Encoder(width), Encoder(width))
        self.pooler = nn.Linear(width, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.norm(self.words(batch["input_ids"]) + self.types(batch["token_type_ids"]))
        return self.pooler(self.blocks(x)[:, 0].tanh())


@program()
def bert(compile: Compile) -> Step:
    """A BERT whose batch is a dict."""
    batch = {"input_ids": torch.randint(0, 64, (4, 12)), "token_type_ids": torch.randint(0, 2, (4, 12))}
    return trains(BERT(), compile, batch)


class LoopedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[0], 16)
        outputs = []
        for one in x.unbind(1):
            hidden, cell = self.cell(one, (hidden, cell))
            outputs.append(self.head(hidden))
        return torch.stack(outputs, dim=1)


@program()
def lstm_loop(compile: Compile) -> Step:
    """An LSTM cell in a loop over time, trained."""
    return trains(LoopedLSTM(), compile, torch.randn(4, 5, 8))


class SelectiveScan(nn.Module):
    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.parts = nn.Linear(width, 2 * states + 1)
        self.log_a = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.into(x).chunk(2, dim=-1)
        x = functional.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, delta = self.parts(x).split([self.states, self.states, 1], dim=-1)
        delta = functional.softplus(delta)
        hidden, outputs = x.new_zeros(x.shape[0], x.shape[2], self.states), []
        for t in range(x.shape[1]):
            decay = torch.exp(-delta[:, t, :, None] * self.log_a.exp())
            hidden = decay * hidden + delta[:, t, :, None] * b[:, t, None, :] * x[:, t, :, None]
            outputs.append((hidden * c[:, t, None, :]).sum(-1))
        return self.out(torch.stack(outputs, 1) * functional.silu(gate))


@program()
def selective_scan(compile: Compile) -> Step:
    """A state space model with a scan in a loop, as in Mamba, trained."""
    return trains(SelectiveScan(), compile, torch.randn(2, 5, 16))


class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.rnn(x)
        return self.head(outputs[:, -1])


@program()
def gru(compile: Compile) -> Step:
    """torch's own GRU and a head, trained."""
    return trains(GRU(), compile, torch.randn(4, 5, 8))


class Experts(nn.Module):
    def __init__(self, width: int = 16, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(width, experts), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, indices = self.gate(x).softmax(-1).topk(self.chosen, dim=-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = torch.where(indices == number, weights, 0.0).sum(-1, keepdim=True)
            result = result + share * expert(x)
        return result


@program()
def mixture_of_experts(compile: Compile) -> Step:
    """A mixture of four experts of which two count, trained."""
    return trains(Experts(), compile, torch.randn(8, 16))


class RoutedExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, indices = self.gate(x).softmax(-1).topk(self.chosen, dim=-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(indices == number)
            if rows.numel():
                result.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return result


@program()
def routed_experts(compile: Compile) -> Step:
    """A mixture of experts that sends each row to its experts by `torch.where`: graphs break at every expert."""
    return infers(RoutedExperts(experts=2), compile, torch.randn(8, 16))


class CLIP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = ViT(depth=1), nn.Sequential(nn.Embedding(64, 10), nn.Linear(10, 10))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        pictures = functional.normalize(self.image(images), dim=-1)
        texts = functional.normalize(self.text(tokens).mean(1), dim=-1)
        logits = self.scale.exp() * pictures @ texts.t()
        labels = torch.arange(len(logits), device=logits.device)
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2


@program()
def contrastive(compile: Compile) -> Step:
    """A CLIP-like pair of encoders and their contrastive loss."""
    return trains(CLIP(), compile, torch.randn(4, 3, 16, 16), torch.randint(0, 64, (4, 6)))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(64, 16, mode="mean"), nn.Linear(16, 2)

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bag(tokens, offsets))


@program()
def embedding_bag(compile: Compile) -> Step:
    """An embedding bag, trained."""
    return trains(Bags(), compile, torch.randint(0, 64, (20,)), torch.tensor([0, 5, 9, 14]))


@program()
def masked_attention(compile: Compile) -> Step:
    """A function around `scaled_dot_product_attention` with a mask that is an argument."""

    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(k.shape[2])[None, None, None] < lengths[:, None, None, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return infers(attend, compile, *torch.randn(3, 2, 2, 6, 8).unbind(0), torch.tensor([4, 6]))


class GraphLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = functional.relu(self.message(torch.cat([x[source], x[target]], -1)))
        summed = torch.zeros_like(x).index_add_(0, target, messages)
        degree = x.new_zeros(len(x)).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        return self.update(torch.cat([x, summed / degree.clamp(min=1)[:, None]], -1))


class GraphNetwork(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(width), GraphLayer(width)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return x


@program()
def graph_network(compile: Compile) -> Step:
    """A graph network with `index_add_` and `scatter_add_`, trained."""
    return trains(GraphNetwork(), compile, torch.randn(10, 8), torch.randint(0, 10, (2, 30)))


class Cached(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return self.out(functional.scaled_dot_product_attention(q, k, v)), (k, v)


@program(steps=4)
def growing_cache(compile: Compile) -> Step:
    """Generation with keys and values of the past that grow from step to step."""
    compiled, x = compile(Cached()), torch.randn(2, 3, 16)
    past = None

    def step() -> object:
        nonlocal x, past
        with torch.no_grad():
            y, past = compiled(x, past)
        x = y[:, -1:]
        return y, past

    return step
