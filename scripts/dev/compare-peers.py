#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `fusionml bench speed` beside other programs' llama-bench on the same files, interleaved, and prints ratios.

    compare-peers.py MODEL.gguf... --llama PATH/llama-bench --ik PATH/llama-bench [-p 512] [-n 64] [-t 2] [--rounds 5]

Any number of models; each is a table of its own. The programs, by their names in the output:
    ours     --fusionml (build/fusionml), with --ours-options
    llama    --llama, llama.cpp's llama-bench, with --llama-options
    ik-rtr0, ik-rtr1  --ik, ik_llama.cpp's, run-time repack off and on (--rtr), with --ik-options
    NAME     --also NAME=COMMAND: anything else that takes llama-bench's options and prints its JSON

A round runs every program and then all of them backwards (A B B A, A B C C B A); the next round begins one further. A
program's figure of a round is the mean of its two runs. A ratio is ours over theirs of the same round; printed are its
median over the rounds and, in brackets, what holds 95 % of 2000 resampled medians (the least and the most below five
rounds). "best" is the peer with the highest median. The roofs are those of `fusionml bench kernels --op roof`, before
the rounds and behind them. Only the standard library is needed. Exit status 1: a program failed.
"""
import argparse
import datetime
import json
import os
import random
import shlex
import statistics
import subprocess
import sys


def environment(program):
    """The program's libraries may lie beside it, as llama.cpp's do."""
    folder = os.path.dirname(os.path.abspath(program))
    up = os.path.dirname(folder)
    places = [folder, os.path.join(up, "lib"), os.path.join(up, "src"), os.path.join(up, "ggml", "src")]
    old = os.environ.get("LD_LIBRARY_PATH")
    return dict(os.environ, LD_LIBRARY_PATH=":".join(places + ([old] if old else [])))


def run(command, timeout):
    """Its stdout; ends this program with a sentence where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment(command[0]))
    except (OSError, subprocess.TimeoutExpired) as fault:
        sys.exit(f"compare-peers: {shlex.join(command)}: {fault}")
    if done.returncode != 0:
        sys.exit(f"compare-peers: {shlex.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def rows_of(text):
    """The rows that a llama-bench or fusionml printed with -o json; notes may stand before them."""
    begin = 0 if text.startswith("[") else text.find("\n[") + 1
    if not text[begin:].startswith("["):
        raise ValueError("no JSON list")
    return json.JSONDecoder().raw_decode(text[begin:])[0]


def name_of(row):
    """The test's name as llama-bench's tables have it: pp512, tg64, pp512+tg64 @ d128."""
    prompt, gen, depth = row["n_prompt"], row["n_gen"], row.get("n_depth", 0)
    name = "+".join(([f"pp{prompt}"] if prompt else []) + ([f"tg{gen}"] if gen else []))
    return f"{name} @ d{depth}" if depth else name


def speeds(command, timeout):
    """{test: (tokens/s, row)} of one run."""
    text = run(command, timeout)
    try:
        return {name_of(row): (float(row["avg_ts"]), row) for row in rows_of(text)}
    except (ValueError, KeyError) as fault:
        sys.exit(f"compare-peers: {shlex.join(command)}: not llama-bench's JSON: {fault}")


def order(names, round_index):
    """Forwards from another beginning in every round, then backwards."""
    turn = round_index % len(names)
    line = names[turn:] + names[:turn]
    return line + line[::-1]


def interval(values):
    """(median, low, high): 95 % of resampled medians, or the extremes of fewer than five."""
    values = sorted(values)
    middle = statistics.median(values)
    if len(values) < 5:
        return middle, values[0], values[-1]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return middle, medians[50], medians[-51]


def roofs(a):
    command = [a.fusionml, "bench", "kernels", "--op", "roof", "-o", "json"] + (["-t", str(a.threads)] if a.threads else [])
    return json.loads(run(command, a.timeout))["roofs"]


def roof_text(r):
    return (f"VNNI {r['vnni_gop_s']:.0f} GOP/s, FMA {r['fma_gop_s']:.0f}, bf16 {r['bf16_gop_s']:.0f} GFLOP/s, "
            f"reading {r['read_gb_s']:.1f} GB/s; load {os.getloadavg()[0]:.2f}")


def subjects(a):
    """{name: command up to the model}, ours first."""
    out = {"ours": [a.fusionml, "bench", "speed"] + shlex.split(a.ours_options)}
    if a.llama:
        out["llama"] = [a.llama] + shlex.split(a.llama_options)
    for repack in a.rtr.split(",") if a.ik else []:
        out[f"ik-rtr{repack}"] = [a.ik, "-rtr", repack] + shlex.split(a.ik_options)
    for also in a.also:
        name, _, command = also.partition("=")
        if not name or not command or name in out:
            sys.exit(f"compare-peers: --also {also}: not NAME=COMMAND with a name of its own")
        out[name] = shlex.split(command)
    return out


def common(a, model):
    options = ["-m", model, "-p", a.prompt, "-n", a.gen, "-r", str(a.reps), "-o", "json"]
    for pair in a.pair:
        options += ["-pg", pair]
    if a.depth != "0":
        options += ["-d", a.depth] # ik_llama.cpp has no such option: leave it out there
    if a.threads:
        options += ["-t", str(a.threads)]
    return options


def measure(a, model, commands):
    """rounds[i][name][test] = [tokens/s of each run], and ours' last rows."""
    rounds, last = [], {}
    for i in range(a.rounds):
        now = {name: {} for name in commands}
        for name in order(list(commands), i):
            for test, (rate, row) in speeds(commands[name] + common(a, model), a.timeout).items():
                now[name].setdefault(test, []).append(rate)
                if name == "ours":
                    last[test] = row
            print(f"  round {i + 1} of {a.rounds}: {name}", file=sys.stderr)
        rounds.append(now)
    return rounds, last


def of_roof(row, rate, roof):
    """What ours reached in the hardware's units, as text."""
    if row["n_prompt"] == 0 and row.get("decode_bytes"):
        reached = rate * row["decode_bytes"] / 1e9
        return f"{reached:.1f} GB/s, {100 * reached / roof['read_gb_s']:.0f} % of reading"
    if row.get("prompt_gop_s"):
        reached = row["prompt_gop_s"] * rate / row["avg_ts"]
        unit = "vnni" if row.get("class") == "exact" else "bf16" if roof["bf16_gop_s"] else "fma"
        return f"{reached:.0f} GOP/s, {100 * reached / roof[unit + '_gop_s']:.0f} % of {unit}"
    return ""


def report(model, names, rounds, last, before, after):
    """One table; returns it as data too."""
    peers = names[1:]
    better = {key: max(before[key], after[key]) for key in before if key.endswith("_s")}
    print(f"\n{os.path.basename(model)}\n")
    print("| test | " + " | ".join(names) + " | " + " | ".join(f"over {p}" for p in peers) +
          (" | over the best" if len(peers) > 1 else "") + " | ours beside the roof |")
    print("|---" * (len(names) + len(peers) + (3 if len(peers) > 1 else 2)) + "|")
    data = []
    for test in rounds[0]["ours"]:
        if any(test not in r[name] for r in rounds for name in names):
            print(f"compare-peers: {test}: not every program has this test", file=sys.stderr)
            continue
        rates = {name: [statistics.mean(r[name][test]) for r in rounds] for name in names}
        medians = {name: statistics.median(rates[name]) for name in names}
        ratios = {p: interval([x / y for x, y in zip(rates["ours"], rates[p])]) for p in peers}
        cells = [f"{medians[name]:.2f}" for name in names]
        cells += ["%.3f (%.3f to %.3f)" % ratios[p] for p in peers]
        if len(peers) > 1:
            best = max(peers, key=medians.get)
            cells.append("%.3f (%.3f to %.3f), " % ratios[best] + best)
        cells.append(of_roof(last[test], medians["ours"], better))
        print(f"| {test} | " + " | ".join(cells) + " |")
        data.append({"model": model, "test": test, "tokens_per_second": {n: [r[n][test] for r in rounds] for n in names},
                     "ratios": {p: dict(zip(("median", "low", "high"), ratios[p])) for p in peers}, "ours": last[test]})
    return data


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--fusionml", default="build/fusionml", help="the program (default build/fusionml)")
    p.add_argument("--llama", help="llama.cpp's llama-bench")
    p.add_argument("--ik", help="ik_llama.cpp's llama-bench")
    p.add_argument("--rtr", default="0,1", help="run-time repack of ik_llama.cpp: 0, 1 or 0,1 (default)")
    p.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    p.add_argument("--ours-options", default="", help='for `fusionml bench speed`, as in "--device host"')
    p.add_argument("--llama-options", default="", help='for llama.cpp, as in "-fa 1"')
    p.add_argument("--ik-options", default="", help="for ik_llama.cpp")
    p.add_argument("-p", dest="prompt", default="512", help="prompt lengths, a list (default 512; 0: none)")
    p.add_argument("-n", dest="gen", default="64", help="tokens to generate, a list (default 64; 0: none)")
    p.add_argument("-pg", dest="pair", action="append", default=[], metavar="PP,TG")
    p.add_argument("-d", dest="depth", default="0", help="tokens in the context before (not for --ik)")
    p.add_argument("-t", dest="threads", type=int, default=0, help="threads (default: each program's own)")
    p.add_argument("-r", dest="reps", type=int, default=1, help="timed repetitions in a run (default 1)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    p.add_argument("--json", metavar="FILE", help="write every figure there")
    a = p.parse_args()
    if a.rounds < 1 or not (a.llama or a.ik or a.also):
        p.error("at least one round, and one of --llama, --ik and --also")
    commands, results = subjects(a), []
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {a.rounds} rounds")
    for model in a.models:
        before = roofs(a)
        print(f"{before['cpu']}, {before['threads']} threads\nroofs before: {roof_text(before)}", flush=True)
        rounds, last = measure(a, model, commands)
        after = roofs(a)
        print(f"roofs after:  {roof_text(after)}")
        results += report(model, list(commands), rounds, last, before, after)
        sys.stdout.flush()
        if a.json:
            with open(a.json, "w", encoding="utf-8") as f:
                json.dump({"commands": commands, "roofs": [before, after], "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
