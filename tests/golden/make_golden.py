#!/usr/bin/env python3
"""Makes the golden values that the C trainer's tests compare against.

Run:  /usr/bin/python3 tests/golden/make_golden.py
      Needs numpy and torch (1.13 on the CPU is enough: Debian's python3-torch).  It writes small_fp32.bin,
      small_bf16.bin, odd_fp32.bin and odd_bf16.bin next to itself, reads them back, and prints a summary.  The files
      are committed, so this is needed only when the model, the optimizer or the rounding points change.

What: one forward and backward pass of GPT-2 (pre-LayerNorm, tanh GELU, learned positions, tied head, no head bias)
      and ten AdamW steps on one fixed batch, from random float32 weights.  "small" has round sizes.  "odd" has every
      size odd, maxT > T (position rows without gradient) and two ignored targets (-1).

Precision
      All arithmetic is float64, so that the files hold the right answer rather than one more float32 approximation
      of it.  A reader must allow for its own float32 accumulation.
      fp32 files: nothing is rounded between the float32 inputs and the float32 values in the file; the weights, too,
      stay float64 over the ten steps.
      bf16 files: the same code, but a value is rounded to bf16 (nearest, ties to even) wherever the trainer stores a
      bf16 tensor.  R() marks those places:
        compute weights         R(master), for every tensor, LayerNorms and biases included
        forward activations     x0, ln1, qkv, atty, attproj, xmid, ln2, fch, gelu, fcproj, xout, lnf, logits
        activation gradients    dlogits, dlnf, dgelu, dfch, dln2, datty, dqkv, dln1, and dres after each addition
      and these are NOT rounded:
        LayerNorm mean and 1/std (taken from the stored x); attention scores, probabilities and their gradients; the
        loss (taken from the stored logits); every weight gradient; Adam's moments (float64).
      In bf16 files the master weights are rounded to float32 after each step.

Optimizer
      Clipping: all gradients are scaled by clip/norm when their global norm exceeds clip.
      AdamW:    p -= lr * (mhat / (sqrt(vhat) + eps) + wd * p), wd on 2-D tensors only.
      The hyperparameters are the float32 values in the file, widened.

File format (little-endian), records until the end of the file:
      int32 name length, name (no terminator), int32 type (0 float32, 1 int32), int64 element count, data
  config     int32    B, T, maxT, L, C, NH, V
  hyper      float32  beta1, beta2, eps, lr, wd, clip
  tokens     int32    (B,T)
  targets    int32    (B,T), -1 = ignored; the loss is the mean over the others
  init/NAME  float32  master weights before the first step (the same in the fp32 and bf16 file of a shape)
  grad/NAME  float32  gradients of the first step, before clipping
  final/NAME float32  master weights after the tenth step
  logits     float32  (B,T,V), first step
  losses     float32  ten losses, each before its step's update
  norms      float32  ten global gradient norms, before clipping
NAME: wte, wpe, lnfw, lnfb and, for each layer l, h{l}. followed by qkvw attprojw fcw fcprojw (each (out,in)), ln1w
ln1b qkvb attprojb ln2w ln2b fcb fcprojb.  wte has exactly V rows (no padding).  qkvw's rows are all of q, then all of
k, then all of v, the heads consecutive in each.
"""

import math
import os
import struct
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F

Shape = namedtuple("Shape", "name B T maxT L C NH V ignored clip seed")
SHAPES = [
    # The clip values are such that clipping binds only on small's early steps and on every step of odd.  So both
    # branches are run, and no norm is so close to its clip that a reader's own rounding would pick the branch.
    Shape("small", B=2, T=16, maxT=16, L=2, C=32, NH=4, V=50, ignored=(), clip=2.05, seed=1234),
    # One ignored target ends a row and one is in the middle of a row: both kinds occur in real batches.
    Shape("odd", B=3, T=7, maxT=11, L=3, C=15, NH=3, V=19, ignored=((0, 6), (2, 3)), clip=0.5, seed=4321),
]
STEPS = 10
LN_EPS = 1e-5
BETA1, BETA2, ADAM_EPS, LR, WD = 0.9, 0.95, 1e-4, 3e-3, 0.1
GELU_SCALE = math.sqrt(2.0 / math.pi)
MAX_TOTAL_BYTES = 900 * 1024
TYPE_FLOAT32, TYPE_INT32 = 0, 1
REAL = torch.float64


def keep(x):
    """R() of the fp32 files: stores lose nothing."""
    return x


def round_bf16(x):
    """R() of the bf16 files.  By way of float32, since that is what the trainer holds when it stores."""
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


def check_round_bf16():
    """The files rest on ties going to even, which is cheaper to check than to trust of every torch version."""
    ulp = 2.0 ** -7
    given = torch.tensor([1 + 0.5 * ulp, 1 + 1.5 * ulp, 1 + 0.51 * ulp, -(1 + 1.5 * ulp)], dtype=REAL)
    wanted = torch.tensor([1.0, 1 + 2 * ulp, 1 + ulp, -(1 + 2 * ulp)], dtype=REAL)
    assert torch.equal(round_bf16(given), wanted)


# ---- weights and batch -----------------------------------------------------------------------------------------------

def weight_shapes(s):
    shapes = {"wte": (s.V, s.C), "wpe": (s.maxT, s.C)}
    for l in range(s.L):
        shapes.update({
            f"h{l}.qkvw": (3 * s.C, s.C), f"h{l}.attprojw": (s.C, s.C),
            f"h{l}.fcw": (4 * s.C, s.C), f"h{l}.fcprojw": (s.C, 4 * s.C),
            f"h{l}.ln1w": (s.C,), f"h{l}.ln1b": (s.C,), f"h{l}.qkvb": (3 * s.C,), f"h{l}.attprojb": (s.C,),
            f"h{l}.ln2w": (s.C,), f"h{l}.ln2b": (s.C,), f"h{l}.fcb": (4 * s.C,), f"h{l}.fcprojb": (s.C,),
        })
    shapes.update({"lnfw": (s.C,), "lnfb": (s.C,)})
    return shapes


def is_layernorm_weight(name):
    return name.endswith(("ln1w", "ln2w", "lnfw"))


def make_inputs(s):
    """Random weights as float32 arrays, and a batch.

    The spread is larger than GPT-2's 0.02, and no bias or LayerNorm parameter has its usual neutral value: with those,
    a small model would hide a missing bias or a wrong gradient path below the tolerance.
    """
    rng = np.random.default_rng(s.seed)
    weights = {}
    for name, shape in weight_shapes(s).items():
        noise = rng.standard_normal(shape)
        if len(shape) == 2:
            value = 0.08 * noise
        elif is_layernorm_weight(name):
            value = 1.0 + 0.1 * noise
        else:
            value = 0.05 * noise
        weights[name] = value.astype(np.float32)
    tokens = rng.integers(0, s.V, (s.B, s.T)).astype(np.int32)
    targets = rng.integers(0, s.V, (s.B, s.T)).astype(np.int32)
    for row, col in s.ignored:
        targets[row, col] = -1
    # A repeated token makes the embedding's gradient a sum, which a scatter without accumulation would get wrong.
    assert len(np.unique(tokens)) < tokens.size
    return weights, tokens, targets


# ---- the model, forward and backward by hand -------------------------------------------------------------------------

def layernorm(x, weight, bias):
    """Returns the output and what the backward pass needs: the normalized x and 1/std, unrounded."""
    mean = x.mean(-1, keepdim=True)
    rstd = 1.0 / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + LN_EPS)
    xhat = (x - mean) * rstd
    return xhat * weight + bias, (xhat, rstd)


def layernorm_backward(dout, weight, stats):
    """Returns the gradients of x, weight and bias."""
    xhat, rstd = stats
    dxhat = dout * weight
    dx = rstd * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
    return dx, (dout * xhat).sum(0), dout.sum(0)


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(GELU_SCALE * (x + 0.044715 * x ** 3)))


def gelu_slope(x):
    t = torch.tanh(GELU_SCALE * (x + 0.044715 * x ** 3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t ** 2) * GELU_SCALE * (1.0 + 3 * 0.044715 * x ** 2)


def to_heads(s, x):
    """(B*T, C) to (B, NH, T, C/NH)."""
    return x.view(s.B, s.T, s.NH, s.C // s.NH).transpose(1, 2)


def from_heads(s, x):
    return x.transpose(1, 2).reshape(s.B * s.T, s.C)


def attention_probs(s, q, k):
    scores = q @ k.transpose(-1, -2) / math.sqrt(s.C // s.NH)
    future = torch.triu(torch.ones(s.T, s.T, dtype=torch.bool), diagonal=1)
    return torch.softmax(scores.masked_fill(future, -math.inf), -1)


def attention(s, qkv):
    q, k, v = (to_heads(s, part) for part in qkv.split(s.C, -1))
    return from_heads(s, attention_probs(s, q, k) @ v)


def attention_backward(s, qkv, atty, datty):
    q, k, v = (to_heads(s, part) for part in qkv.split(s.C, -1))
    dout = to_heads(s, datty)
    probs = attention_probs(s, q, k)
    # The stored (in bf16: rounded) output, as in flash attention's backward pass; sum(P*dP) would differ slightly.
    delta = (dout * to_heads(s, atty)).sum(-1, keepdim=True)
    dscores = probs * (dout @ v.transpose(-1, -2) - delta) / math.sqrt(s.C // s.NH)
    dq, dk, dv = dscores @ k, dscores.transpose(-1, -2) @ q, probs.transpose(-1, -2) @ dout
    return torch.cat([from_heads(s, d) for d in (dq, dk, dv)], -1)


def forward_backward(s, master, tokens, targets, R):
    """Returns the loss, the logits (B,T,V) and a gradient for every weight.  Rows are the B*T positions."""
    w = {name: R(value) for name, value in master.items()}
    grads = {name: torch.zeros_like(value) for name, value in w.items()}
    tokens, targets = tokens.reshape(-1), targets.reshape(-1)
    positions = torch.arange(s.T).repeat(s.B)

    x = R(w["wte"][tokens] + w["wpe"][positions])
    saved = []
    for l in range(s.L):
        h = f"h{l}."
        a = {}
        ln1, a["ln1_stats"] = layernorm(x, w[h + "ln1w"], w[h + "ln1b"])
        a["ln1"] = R(ln1)
        a["qkv"] = R(a["ln1"] @ w[h + "qkvw"].T + w[h + "qkvb"])
        a["atty"] = R(attention(s, a["qkv"]))
        attproj = R(a["atty"] @ w[h + "attprojw"].T + w[h + "attprojb"])
        xmid = R(x + attproj)
        ln2, a["ln2_stats"] = layernorm(xmid, w[h + "ln2w"], w[h + "ln2b"])
        a["ln2"] = R(ln2)
        a["fch"] = R(a["ln2"] @ w[h + "fcw"].T + w[h + "fcb"])
        a["gelu"] = R(gelu(a["fch"]))
        fcproj = R(a["gelu"] @ w[h + "fcprojw"].T + w[h + "fcprojb"])
        x = R(xmid + fcproj)
        saved.append(a)
    lnf, lnf_stats = layernorm(x, w["lnfw"], w["lnfb"])
    lnf = R(lnf)
    logits = R(lnf @ w["wte"].T)

    valid = targets >= 0
    n_valid = int(valid.sum())
    logprobs = torch.log_softmax(logits, -1)
    target_index = targets.clamp(min=0)
    loss = -(logprobs.gather(1, target_index[:, None])[:, 0] * valid).sum() / n_valid
    dlogits = R((torch.exp(logprobs) - F.one_hot(target_index, s.V)) * valid[:, None] / n_valid)

    grads["wte"] += dlogits.T @ lnf
    dlnf = R(dlogits @ w["wte"])
    dx, grads["lnfw"], grads["lnfb"] = layernorm_backward(dlnf, w["lnfw"], lnf_stats)
    dres = R(dx)
    for l in reversed(range(s.L)):
        h = f"h{l}."
        a = saved[l]
        grads[h + "fcprojw"] = dres.T @ a["gelu"]
        grads[h + "fcprojb"] = dres.sum(0)
        dgelu = R(dres @ w[h + "fcprojw"])
        dfch = R(dgelu * gelu_slope(a["fch"]))
        grads[h + "fcw"] = dfch.T @ a["ln2"]
        grads[h + "fcb"] = dfch.sum(0)
        dln2 = R(dfch @ w[h + "fcw"])
        dx, grads[h + "ln2w"], grads[h + "ln2b"] = layernorm_backward(dln2, w[h + "ln2w"], a["ln2_stats"])
        dres = R(dres + dx)
        grads[h + "attprojw"] = dres.T @ a["atty"]
        grads[h + "attprojb"] = dres.sum(0)
        datty = R(dres @ w[h + "attprojw"])
        dqkv = R(attention_backward(s, a["qkv"], a["atty"], datty))
        grads[h + "qkvw"] = dqkv.T @ a["ln1"]
        grads[h + "qkvb"] = dqkv.sum(0)
        dln1 = R(dqkv @ w[h + "qkvw"])
        dx, grads[h + "ln1w"], grads[h + "ln1b"] = layernorm_backward(dln1, w[h + "ln1w"], a["ln1_stats"])
        dres = R(dres + dx)
    grads["wte"].index_add_(0, tokens, dres)
    grads["wpe"].index_add_(0, positions, dres)
    return loss, logits.view(s.B, s.T, s.V), grads


# ---- the optimizer ---------------------------------------------------------------------------------------------------

def hyperparameters(s):
    return np.array([BETA1, BETA2, ADAM_EPS, LR, WD, s.clip], np.float32)


def gradient_norm(grads):
    return math.sqrt(sum(float((g ** 2).sum()) for g in grads.values()))


def train(s, init, tokens, targets, R, master_is_float32):
    """Ten steps.  Returns the losses, the norms, the first step's logits and gradients, and the final weights."""
    beta1, beta2, eps, lr, wd, clip = (float(h) for h in hyperparameters(s))
    master = {name: torch.tensor(value, dtype=REAL) for name, value in init.items()}
    m = {name: torch.zeros_like(value) for name, value in master.items()}
    v = {name: torch.zeros_like(value) for name, value in master.items()}
    losses, norms, first_logits, first_grads = [], [], None, None
    for step in range(1, STEPS + 1):
        loss, logits, grads = forward_backward(s, master, tokens, targets, R)
        norm = gradient_norm(grads)
        losses.append(float(loss))
        norms.append(norm)
        if step == 1:
            first_logits, first_grads = logits, grads
        scale = clip / norm if norm > clip else 1.0
        for name, p in master.items():
            g = grads[name] * scale
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g ** 2
            mhat = m[name] / (1 - beta1 ** step)
            vhat = v[name] / (1 - beta2 ** step)
            decay = wd if p.dim() == 2 else 0.0
            p = p - lr * (mhat / (torch.sqrt(vhat) + eps) + decay * p)
            master[name] = p.to(torch.float32).to(REAL) if master_is_float32 else p
    return losses, norms, first_logits, first_grads, master


# ---- an independent check of all of the above, by torch's own operators, autograd and AdamW --------------------------

def autograd_loss(s, w, tokens, targets):
    x = w["wte"][tokens] + w["wpe"][:s.T]
    for l in range(s.L):
        h = f"h{l}."
        ln1 = F.layer_norm(x, (s.C,), w[h + "ln1w"], w[h + "ln1b"], LN_EPS)
        q, k, v = F.linear(ln1, w[h + "qkvw"], w[h + "qkvb"]).chunk(3, -1)
        heads = []
        for i in range(s.NH):
            cols = slice(i * s.C // s.NH, (i + 1) * s.C // s.NH)
            scores = torch.einsum("btc,buc->btu", q[..., cols], k[..., cols]) * (s.C / s.NH) ** -0.5
            causal = torch.ones(s.T, s.T).tril() == 1
            probs = F.softmax(torch.where(causal, scores, torch.tensor(-math.inf, dtype=REAL)), -1)
            heads.append(torch.einsum("btu,buc->btc", probs, v[..., cols]))
        x = x + F.linear(torch.cat(heads, -1), w[h + "attprojw"], w[h + "attprojb"])
        ln2 = F.layer_norm(x, (s.C,), w[h + "ln2w"], w[h + "ln2b"], LN_EPS)
        hidden = F.gelu(F.linear(ln2, w[h + "fcw"], w[h + "fcb"]), approximate="tanh")
        x = x + F.linear(hidden, w[h + "fcprojw"], w[h + "fcprojb"])
    logits = F.linear(F.layer_norm(x, (s.C,), w["lnfw"], w["lnfb"], LN_EPS), w["wte"])
    return F.cross_entropy(logits.reshape(-1, s.V), targets.reshape(-1), ignore_index=-1), logits


def check_against_torch(s, init, tokens, targets, fp32_run):
    """Fails unless the unrounded run is what torch computes, step by step."""
    losses, norms, first_logits, first_grads, final = fp32_run
    beta1, beta2, eps, lr, wd, clip = (float(h) for h in hyperparameters(s))
    w = {name: torch.tensor(value, dtype=REAL, requires_grad=True) for name, value in init.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in w.values() if p.dim() == 2], "weight_decay": wd},
         {"params": [p for p in w.values() if p.dim() != 2], "weight_decay": 0.0}],
        lr=lr, betas=(beta1, beta2), eps=eps)
    worst = 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logits = autograd_loss(s, w, tokens, targets)
        loss.backward()
        grads = {name: p.grad for name, p in w.items()}
        norm = gradient_norm(grads)
        if step == 0:
            worst = max(float((grads[name] - first_grads[name]).abs().max()) for name in w)
            worst = max(worst, float((logits.detach() - first_logits).abs().max()))
            assert worst < 1e-9, f"{s.name}: first step differs from torch by {worst}"
        assert abs(float(loss) - losses[step]) < 1e-9 and abs(norm - norms[step]) < 1e-9, f"{s.name}: step {step + 1}"
        # Not clip_grad_norm_: it adds 1e-6 to the norm, which is not the rule the trainer follows.
        if norm > clip:
            for p in w.values():
                p.grad.mul_(clip / norm)
        optimizer.step()
    worst_final = max(float((w[name].detach() - final[name]).abs().max()) for name in w)
    assert worst_final < 1e-9, f"{s.name}: final weights differ from torch by {worst_final}"
    print(f"{s.name}: against torch in float64: first step within {worst:.1e}, final weights within {worst_final:.1e}")


# ---- the files -------------------------------------------------------------------------------------------------------

def float_record(value):
    return np.ascontiguousarray(value.detach().numpy() if torch.is_tensor(value) else value, dtype="<f4")


def write_records(path, records):
    with open(path, "wb") as out:
        for name, array in records.items():
            kind = TYPE_INT32 if array.dtype == np.dtype("<i4") else TYPE_FLOAT32
            encoded = name.encode("ascii")
            out.write(struct.pack("<i", len(encoded)) + encoded + struct.pack("<iq", kind, array.size))
            out.write(array.tobytes())


def read_records(path):
    with open(path, "rb") as source:
        data = source.read()
    records, at = {}, 0
    while at < len(data):
        (length,) = struct.unpack_from("<i", data, at)
        name = data[at + 4:at + 4 + length].decode("ascii")
        at += 4 + length
        kind, count = struct.unpack_from("<iq", data, at)
        at += 12
        assert kind in (TYPE_FLOAT32, TYPE_INT32) and at + 4 * count <= len(data), f"{path}: bad record {name}"
        assert name not in records, f"{path}: {name} occurs twice"
        records[name] = np.frombuffer(data, "<i4" if kind == TYPE_INT32 else "<f4", count, at)
        at += 4 * count
    return records


def make_records(s, init, tokens, targets, run):
    losses, norms, first_logits, first_grads, final = run
    records = {
        "config": np.array([s.B, s.T, s.maxT, s.L, s.C, s.NH, s.V], "<i4"),
        "hyper": float_record(hyperparameters(s)),
        "tokens": np.ascontiguousarray(tokens, "<i4"),
        "targets": np.ascontiguousarray(targets, "<i4"),
    }
    for prefix, tensors in (("init", init), ("grad", first_grads), ("final", final)):
        records.update({f"{prefix}/{name}": float_record(tensors[name]) for name in weight_shapes(s)})
    records.update({
        "logits": float_record(first_logits), "losses": float_record(losses), "norms": float_record(norms),
    })
    return records


def check_file(s, path, records):
    back = read_records(path)
    assert list(back) == list(records)
    for name, array in records.items():
        assert back[name].dtype == array.dtype and np.array_equal(back[name], array.reshape(-1)), f"{path}: {name}"
        assert np.isfinite(back[name]).all(), f"{path}: {name} is not finite"
        assert name == "tokens" or name == "targets" or name == "config" or np.any(back[name] != 0), f"{path}: {name}"
    for name, shape in weight_shapes(s).items():
        assert all(back[f"{prefix}/{name}"].size == math.prod(shape) for prefix in ("init", "grad", "final"))
    # Position rows past T: no gradient, yet they decay.
    assert not back["grad/wpe"][s.T * s.C:].any()
    unused_before, unused_after = back["init/wpe"][s.T * s.C:], back["final/wpe"][s.T * s.C:]
    assert np.allclose(unused_after, unused_before * (1 - LR * WD) ** STEPS, rtol=1e-6, atol=0)


def main():
    # One thread, so that the order of the sums, and with it the files, is the same from run to run.
    torch.set_num_threads(1)
    check_round_bf16()
    folder = os.path.dirname(os.path.abspath(__file__))
    total_bytes = 0
    clipping_ends = False
    for s in SHAPES:
        init, tokens, targets = make_inputs(s)
        batch = torch.tensor(tokens, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64)
        runs = {
            "fp32": train(s, init, *batch, R=keep, master_is_float32=False),
            "bf16": train(s, init, *batch, R=round_bf16, master_is_float32=True),
        }
        check_against_torch(s, init, *batch, runs["fp32"])
        exact_grads, rounded_grads = runs["fp32"][3], runs["bf16"][3]
        error = gradient_norm({name: rounded_grads[name] - g for name, g in exact_grads.items()})
        relative = error / gradient_norm(exact_grads)
        # Rounding costs about 1%.  Much more would mean that some R() is in a place where it destroys information.
        assert relative < 0.03, f"{s.name}: bf16 gradients are off by {relative}"
        print(f"{s.name}: bf16 against fp32: gradients of the first step differ by {relative:.2%} of their norm")
        for precision, run in runs.items():
            losses, norms = run[:2]
            assert norms[0] > s.clip, f"{s.name}: clipping does not bind on the first step"
            free_steps = [step for step, norm in enumerate(norms, 1) if norm <= s.clip]
            clipping_ends = clipping_ends or bool(free_steps)
            path = os.path.join(folder, f"{s.name}_{precision}.bin")
            records = make_records(s, init, tokens, targets, run)
            write_records(path, records)
            check_file(s, path, records)
            size = os.path.getsize(path)
            total_bytes += size
            print(f"{os.path.basename(path)}: {size} bytes, {len(records)} records")
            print("  losses", " ".join(f"{value:.5f}" for value in losses))
            print("  norms ", " ".join(f"{value:.5f}" for value in norms), f" clip {s.clip}, not binding: {free_steps}")
    assert clipping_ends, "clipping binds on every step of every shape: raise a clip value"
    assert total_bytes < MAX_TOTAL_BYTES, f"{total_bytes} bytes in all"
    print(f"total {total_bytes} bytes")


if __name__ == "__main__":
    main()
