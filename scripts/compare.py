#!/usr/bin/env python3
"""Times training steps of GPT-2 124M: train_gpt beside PyTorch and llm.c, in turns on the same machine.

    scripts/compare.py [--llmc FILE] [--python FILE] [-b 4] [-t 256] [--steps 2] [--rounds 3] [--precision fp32]

It runs what it finds: ./train_gpt; PyTorch, eager and torch.compile, if the Python named has it; llm.c's CPU program if
--llmc names it (built with the same B and T, with its checkpoint and token files beside it). Every round runs every
program once, so a slow spell of the machine hits all of them; a program's first step of a round is not counted. The
table gives medians; memory is the largest resident set of the process.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time


def worker(flags):
    """One PyTorch run: GPT-2 124M with what PyTorch users are told to use; prints the milliseconds of each step."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    L, NH, C, V = 12, 12, 768, 50304
    B, T = flags.b, flags.t
    fused = hasattr(F, "scaled_dot_product_attention")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.qkv, self.projection = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.fc, self.out = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
            self.gelu = nn.GELU(approximate="tanh")
            self.register_buffer("above", torch.ones(T, T, dtype=torch.bool).triu(1), persistent=False)

        def attention(self, x):
            q, k, v = (y.view(B, T, NH, C // NH).transpose(1, 2) for y in self.qkv(x).split(C, dim=2))
            if fused:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(2, 3)) * (C // NH) ** -0.5
                y = scores.masked_fill(self.above, float("-inf")).softmax(dim=3) @ v
            return self.projection(y.transpose(1, 2).reshape(B, T, C))

        def forward(self, x):
            x = x + self.attention(self.ln1(x))
            return x + self.out(self.gelu(self.fc(self.ln2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(1024, C)
            self.layers, self.ln = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(C)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(T))
            for layer in self.layers:
                x = layer(x)
            logits = self.ln(x) @ self.wte.weight.t()
            return F.cross_entropy(logits.view(-1, V), targets.view(-1))

    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    model = Model()
    for p in model.parameters():
        p.data.normal_(0, 0.02)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    except (TypeError, RuntimeError):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    run = torch.compile(model) if flags.compile else model
    for _ in range(flags.steps + 1):
        data = torch.randint(50257, (B, T + 1))
        start = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.precision == "bf16"):
            loss = run(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        print("%.1f ms" % (1e3 * (time.monotonic() - start)), flush=True)


def run(command, steps, directory=None):
    """Milliseconds of steps 2 ... steps + 1 of a program that prints "... N ms" per step, and its peak MiB."""
    child = subprocess.Popen(["stdbuf", "-oL"] + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             cwd=directory)
    times = []
    for line in child.stdout:
        found = re.search(r"([0-9.]+) ms", line) if "phase" not in line else None
        if found:
            times.append(float(found.group(1)))
        if len(times) == steps + 1:
            break
    with open("/proc/%d/status" % child.pid) as status:
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read())
    child.kill()
    errors = child.stderr.read()
    child.wait()
    if len(times) <= steps:
        sys.exit("%s failed:\n%s" % (" ".join(command), errors))
    return times[1:], int(peak.group(1)) / 1024 if peak else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", type=int, default=4)
    parser.add_argument("-t", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--llmc", help="llm.c's CPU program, train_gpt2")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return worker(flags)
    shape = ["-b", str(flags.b), "-t", str(flags.t)]
    ours = ["./train_gpt", "-e", "d12", "--vocab", "50257", "--max-length", "1024", "-i", "random", "-v", "0", "-g",
            "0", "-x", "1000", "-p", flags.precision] + shape
    programs = [("train_gpt", ours, None)]
    version = subprocess.run([flags.python, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                             text=True)
    if version.returncode == 0:
        torch = [flags.python, os.path.abspath(__file__), "--worker", "--steps", str(flags.steps), "--precision",
                 flags.precision] + shape
        programs.append(("PyTorch " + version.stdout.strip(), torch, None))
        if int(version.stdout.split(".")[0]) >= 2:
            programs.append(("PyTorch, torch.compile", torch + ["--compile"], None))
    else:
        print("no PyTorch in %s" % flags.python, file=sys.stderr)
    if flags.llmc:
        llmc = os.path.abspath(flags.llmc)
        programs.append(("llm.c's CPU program (fp32)", [llmc], os.path.dirname(llmc)))
    times, peaks = {name: [] for name, _, _ in programs}, {}
    for _ in range(flags.rounds):
        for name, command, directory in programs:
            milliseconds, peaks[name] = run(command, flags.steps, directory)
            times[name] += milliseconds
    first = statistics.median(times["train_gpt"])
    print("| program, 124M, %s, B=%d, T=%d | ms per step | tokens/s | train_gpt is faster | peak MiB |"
          % (flags.precision, flags.b, flags.t))
    print("|---|---|---|---|---|")
    for name, _, _ in programs:
        step = statistics.median(times[name])
        print("| %s | %.0f | %.1f | %.2f times | %.0f |" % (name, step, 1e3 * flags.b * flags.t / step, step / first,
                                                          peaks[name]))


if __name__ == "__main__":
    main()
