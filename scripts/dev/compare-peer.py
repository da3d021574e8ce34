#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a llama-bench beside `fusionml bench` on the same file, interleaved A B B A, and prints the ratios.

usage: compare-peer.py LLAMA_BENCH MODEL.gguf [--fusionml build/fusionml] [-P 512] [-n 64] [-t 2] [--rounds 3]

Each round runs ours, the peer, the peer, ours; a round's ratio is the mean of our two over the mean of its two.
Printed: medians of both, the median ratio and the ratios of all rounds (the machine's noise is visible there).
"""
import argparse
import json
import statistics
import subprocess


def ours(a):
    out = subprocess.run([a.fusionml, "bench", "-m", a.model, "-P", str(a.prompt), "-n", str(a.predict), "-t",
                          str(a.threads), "-r", "1", "--json"], check=True, capture_output=True, text=True)
    r = json.loads(out.stdout)
    return r["prefill_per_second"], r["decode_per_second"]


def peer(a):
    out = subprocess.run([a.peer, "-m", a.model, "-p", str(a.prompt), "-n", str(a.predict), "-t", str(a.threads),
                          "-r", "1", "-o", "json"], check=True, capture_output=True, text=True)
    rows = json.loads(out.stdout)
    prefill = [r["avg_ts"] for r in rows if r["n_prompt"] > 0 and r["n_gen"] == 0][0]
    decode = [r["avg_ts"] for r in rows if r["n_gen"] > 0 and r["n_prompt"] == 0][0]
    return prefill, decode


def main():
    p = argparse.ArgumentParser()
    p.add_argument("peer")
    p.add_argument("model")
    p.add_argument("--fusionml", default="build/fusionml")
    p.add_argument("-P", dest="prompt", type=int, default=512)
    p.add_argument("-n", dest="predict", type=int, default=64)
    p.add_argument("-t", dest="threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    rounds = []
    for _ in range(a.rounds):
        first, second, third, fourth = ours(a), peer(a), peer(a), ours(a)
        rounds.append([((first[i] + fourth[i]) / 2, (second[i] + third[i]) / 2) for i in (0, 1)])
    for i, name in enumerate((f"pp{a.prompt}", f"tg{a.predict}")):
        mine = statistics.median(r[i][0] for r in rounds)
        theirs = statistics.median(r[i][1] for r in rounds)
        ratios = sorted(r[i][0] / r[i][1] for r in rounds)
        print(f"{name}: ours {mine:.2f}, peer {theirs:.2f} tokens/s; ratio {statistics.median(ratios):.3f} "
              f"({', '.join(f'{x:.3f}' for x in ratios)})")


if __name__ == "__main__":
    main()
