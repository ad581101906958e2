"""What it costs to open texts: as bytes, through a BPE tokenizer, and from the token cache.

    python -m benchmarks.tokenizing                   prints a table, writes tokenizing.json
    python -m benchmarks.tokenizing --megabytes 20    with a shorter line

Two texts: the standard library's sources, and one line of random letters and digits, the worst
that a BPE can meet, for it is one word. The BPE, of 8,000 tokens, is trained here on the sources.
Every case opens the data in a process of its own, so that the memory is its own too; medians of
three rounds in alternation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.measure import print_table, write_json

ROUNDS = 3
ROOT = Path(__file__).resolve().parents[1]
OPEN = """
import json, resource, sys, time
from configs import load
from data import open_data
config = load(sys.argv[1:])
start = time.perf_counter()
dataset = open_data(config.data, "train", config.model.vocab_size)
dataset.batch(0)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "tokens": dataset.stats.tokens, "peak_gb": peak / 1e6}))
"""


def train_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    files = sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py")))
    tokenizer.train(files, trainer)
    tokenizer.save(str(path))


def write_line(path: Path, megabytes: int) -> None:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(random.choice(letters, 10**6).tobytes())


def open_once(overrides: list[str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *overrides],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        train_tokenizer(place / "bpe.json")
        write_line(place / "line.txt", options.megabytes)
        bpe = [f"data.tokenizer={place / 'bpe.json'}", "model.vocab_size=8000"]
        cache = [f"data.token_cache={place / 'cache'}"]
        line = ["data=text", f"data.path={place / 'line.txt'}", "data.token_cache=null"]
        cases = {
            "stdlib, bytes": [],
            "stdlib, BPE": [*bpe, "data.token_cache=null"],
            "stdlib, BPE, from the cache": [*bpe, *cache],
            "one line, bytes": line,
            "one line, BPE": [*line, *bpe],
        }
        open_once(cases["stdlib, BPE, from the cache"])  # fills it
        rounds = [{name: open_once(case) for name, case in cases.items()} for _ in range(ROUNDS)]
    rows = [
        {
            "case": name,
            "tokens": rounds[0][name]["tokens"],
            "seconds": statistics.median(made[name]["seconds"] for made in rounds),
            "peak_gb": max(made[name]["peak_gb"] for made in rounds),
        }
        for name in cases
    ]
    print_table(rows, ["case", "seconds", "peak_gb", "tokens"])
    write_json(options.json, {"megabytes": options.megabytes, "cases": rows})


if __name__ == "__main__":
    main()
