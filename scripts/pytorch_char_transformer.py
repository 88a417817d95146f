#!/usr/bin/env python3
"""The losses of PyTorch for the character-level transformer of examples/: tests/data/char_transformer.csv.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_char_transformer.py

Everything here is exact and specified, so that another program can train the same model on the same batches:

Text      assets/sonnets/sonnets.txt, bytes. A token is the rank of its byte among the sorted distinct bytes of the text.
LCG       state' = state * 6364136223846793005 + 1442695040888963407 mod 2^64; each draw first steps, then reads.
Init      seed 1; one stream for all parameters, in the order of `named_parameters()` (the order of the table that this
          program prints), each row-major. A matrix draws each element as (2u - 1) * bound, u = (state >> 40) / 2^24, which is
          exact in f32: bound = 1/8 for both embeddings, 1/sqrt(in) for the weight of a linear layer (1/8 or 1/16).
          Vectors draw nothing: biases are 0, the weights of LayerNorm are 1.
Batches   seed 2; step after step, 16 windows each: start = (state >> 33) mod (len(text) - 32);
          input = text[start .. start + 32], target = text[start + 1 .. start + 33].
Model     pre-norm; all norms LayerNorm(64, eps 1e-5); all linear layers with bias, weight [out, in], y = x W^T + b:
            x = tok[input] + pos                                             [16, 32, 64]
            twice:  q, k, v = split(qkv(ln1(x)), 64 each); 4 heads of 16: [16, 32, 64] -> [16, 4, 32, 16]
                    x = x + proj(heads joined again(softmax(q k^T / 4, causal) v))
                    x = x + down(gelu(up(ln2(x))))                           gelu in its erf form
            logits = head(ln(x)),  loss = mean over all 16 * 32 positions of the cross entropy
Training  f32, 200 steps, no clipping, no schedule, dropout 0, by two optimisers from the same start on the same batches:
            sgd    lr 0.1, momentum 0.9
            adamw  lr 3e-3, betas 0.9 0.999, eps 1e-8, weight decay 0.01 on all parameters
"""

import pathlib

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH, CONTEXT, WIDTH, HEADS, LAYERS, STEPS = 16, 32, 64, 4, 2, 200


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def draw(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        heads = [y.view(b, t, HEADS, d // HEADS).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(WIDTH, dim=2)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tok = nn.Embedding(vocab, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocab)
        lcg = Lcg(1)
        for name, p in self.named_parameters():
            if p.dim() == 1:
                p.data.fill_(1.0 if name.endswith("weight") else 0.0)
                continue
            bound = 0.125 if "tok" in name or "pos" in name else p.shape[1] ** -0.5
            units = [(lcg.draw() >> 40) / 2**24 for _ in range(p.numel())]
            p.data.copy_(torch.tensor([(2 * u - 1) * bound for u in units]).view(p.shape))

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def batches(tokens):
    lcg = Lcg(2)
    while True:
        starts = [(lcg.draw() >> 33) % (len(tokens) - CONTEXT) for _ in range(BATCH)]
        yield (torch.stack([tokens[s + i : s + i + CONTEXT] for s in starts]) for i in (0, 1))


def train(name, tokens, vocab, dtype):
    """The losses of all steps, and what parameters and gradients were at the first."""
    model = Model(vocab).to(dtype)
    optimiser = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.01),
    }[name](model.parameters())
    losses, first = [], []
    for _, (inputs, targets) in zip(range(STEPS), batches(tokens)):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        if not first:
            first = [(n, list(p.shape), p.abs().sum().item(), p.grad.norm().item()) for n, p in model.named_parameters()]
        optimiser.step()
        losses.append(loss.item())
    return losses, first


def main():
    torch.set_num_threads(1)
    text = (ROOT / "assets/sonnets/sonnets.txt").read_bytes()
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(byte) for byte in text])
    runs = {name: train(name, tokens, len(alphabet), torch.float32) for name in ("sgd", "adamw")}
    lines = [
        "# Written by scripts/pytorch_char_transformer.py, which says what the model is. Loss of each step.",
        f"# PyTorch {torch.__version__}; {len(text)} bytes of text, {len(alphabet)} tokens",
        "# parameters at the start, with the norms of their first gradients:",
    ]
    for name, shape, total, norm in runs["sgd"][1]:
        lines.append(f"#   {name:<22} {str(shape):<10} sum|w| {total:<12.7g} |grad| {norm:.6g}")
    lines.append("step,sgd,adamw")
    lines += [f"{i},{s:.6f},{a:.6f}" for i, (s, a) in enumerate(zip(runs["sgd"][0], runs["adamw"][0]))]
    (ROOT / "tests/data/char_transformer.csv").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    for name in runs:
        exact = train(name, tokens, len(alphabet), torch.float64)[0]
        drift = [abs(a - b) for a, b in zip(runs[name][0], exact)]
        print(f"# {name}: f32 is off f64 by at most {max(drift[:50]):.2g} in 50 steps, {max(drift):.2g} in {STEPS}")


if __name__ == "__main__":
    main()
