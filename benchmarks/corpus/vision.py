"""Models of images, and models that generate."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.program import Compile, Step, infers, program, state, trains


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.shortcut: nn.Module | None = nn.Conv2d(into, out, 1, stride) if stride > 1 or into != out else None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (8, 16), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.layers = nn.Sequential(
            *(Residual(widths[max(0, at - 1)], w, 2 if at else 1) for at, w in enumerate(widths))
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


@program()
def resnet(compile: Compile) -> Step:
    """A ResNet with batch norms, trained."""
    return trains(ResNet(), compile, torch.randn(4, 3, 16, 16))


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (8, 16)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(pairwise(widths))))
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for width in widths)
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.stem(x))
        skips = []
        for norm, layer in zip(self.norms[1:], self.down, strict=True):
            skips.append(x)
            x = functional.silu(norm(layer(x)))
        for layer in self.up:
            x = layer(x) + skips.pop()
        return self.out(x)


@program()
def unet(compile: Compile) -> Step:
    """A UNet with a list of skips, trained."""
    return trains(UNet(), compile, torch.randn(2, 3, 16, 16))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList([Encoder(width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


@program()
def vit(compile: Compile) -> Step:
    """A vision transformer, trained."""
    return trains(ViT(), compile, torch.randn(4, 3, 16, 16))


class Mixer(nn.Module):
    def __init__(self, tokens: int = 16, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.along = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


@program()
def mlp_mixer(compile: Compile) -> Step:
    """A block of an MLP-mixer, trained."""
    return trains(Mixer(), compile, torch.randn(4, 16, 16))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(32, 16), nn.Linear(8, 32)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        return mean, log_variance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return torch.sigmoid(self.decoder(z)), mean, log_variance


@program(random=True)
def vae(compile: Compile) -> Step:
    """A variational autoencoder that draws its noise, trained."""
    model, x = VAE(), torch.rand(8, 32)
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        y, mean, log_variance = compiled(x)
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        (functional.binary_cross_entropy(y, x, reduction="sum") + kl).backward()
        return y.detach(), state(model)

    return step


@program()
def gan_step(compile: Compile) -> Step:
    """A GAN whose generator and discriminator are compiled apart, with an optimizer each."""
    generator = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(32, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    of_g, of_d = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (generator, discriminator))
    noise, real = torch.randn(8, 8), torch.randn(8, 32)
    make, judge = compile(generator), compile(discriminator)
    entropy = functional.binary_cross_entropy_with_logits

    def step() -> object:
        fake = make(noise)
        of_d.zero_grad()
        right, wrong = judge(real), judge(fake.detach())
        (entropy(right, torch.ones_like(right)) + entropy(wrong, torch.zeros_like(wrong))).backward()
        of_d.step()
        of_g.zero_grad()
        judged = judge(fake)
        entropy(judged, torch.ones_like(judged)).backward()
        of_g.step()
        return fake.detach(), state(generator, discriminator)

    return step


class Denoiser(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.into, self.out = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(-torch.arange(4, device=x.device) / 4 * 9.2)
        angles = t[:, None].float() * frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return self.out(functional.silu(self.into(x) + embedded))


class Diffusion(nn.Module):
    alphas: Tensor

    def __init__(self, steps: int = 50) -> None:
        super().__init__()
        self.denoiser = Denoiser()
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0))

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        alpha = self.alphas[t].unsqueeze(-1)
        return self.denoiser(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t) - noise


@program()
def diffusion_step(compile: Compile) -> Step:
    """A diffusion model's training step: times drawn outside, noise added inside."""
    return trains(Diffusion(), compile, torch.randn(8, 8), torch.randint(0, 50, (8,)), torch.randn(8, 8))


class SkipAutoencoder(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 16, 8)) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.Linear(b, a) for a, b in reversed(pairs))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        skips = [x := torch.tanh(layer(x)) for layer in self.down]
        code = skips.pop()
        for layer in self.up:
            x = layer(x)
            if skips:
                x = x + skips.pop()
        return {"code": code, "output": x}


@program()
def skip_autoencoder(compile: Compile) -> Step:
    """An autoencoder that keeps skips in a list and returns a dict."""
    model, x = SkipAutoencoder(), torch.randn(4, 32)
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        made = compiled(x)
        functional.mse_loss(made["output"], x).backward()
        return made["code"].detach(), made["output"].detach(), state(model)

    return step


@program()
def resnet_inference(compile: Compile) -> Step:
    """A ResNet in eval mode with channels last, without gradients."""
    model = ResNet().eval().to(memory_format=torch.channels_last)
    return infers(model, compile, torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last))
