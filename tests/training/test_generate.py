"""Generating and scoring from a Hugging Face folder, without a run."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from configs import load
from model import load_hf
from tests.model.test_references import OWN
from tests.training.small import COMPILE_CACHE
from training.modes import run

FOLDER = OWN / "gpt_oss"  # windows, sinks and experts
PROMPTS = ["5 6 7", "1 2 3 4 9 8 7 6 5 4 3", "40"]
TOKENS = 5
EOS = 63  # the last of the vocabulary, for data without text


def command(mode, *words):
    return run(
        load(
            [
                f"mode={mode}",
                f"init.from_hf={FOLDER}",
                f"compile_cache={COMPILE_CACHE.name}",
                *words,
            ]
        )
    )


@pytest.fixture(scope="module")
def likeliest():
    """The likeliest next token at every place of rows, by one pass over each whole row."""
    model = load_hf(FOLDER)

    def argmax(rows):
        width = max(map(len, rows))
        filled = [row + [0] * (width - len(row)) for row in rows]
        return np.asarray(model(filled)).argmax(-1)

    return argmax


def test_prompts_of_a_file_go_on_together_as_each_would_alone(tmp_path, capsys, likeliest):
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n".join(PROMPTS) + "\n")
    words = ("data=synthetic", f"generate.prompts={file}", f"generate.tokens={TOKENS}")
    assert command("generate", *words, "generate.batch=2") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    answers = [json.loads(line) for line in lines]
    assert [answer["prompt"] for answer in answers] == PROMPTS
    prompts = [[int(i) for i in prompt.split()] for prompt in PROMPTS]
    found = [[int(i) for i in answer["continuation"].split()] for answer in answers]
    after = likeliest([a + b for a, b in zip(prompts, found, strict=True)])
    for prompt, tokens, expected in zip(prompts, found, after, strict=True):
        ids = expected[len(prompt) - 1 : len(prompt) - 1 + TOKENS].tolist()
        assert tokens == list(itertools.takewhile(lambda i: i != EOS, ids))
    lengths = sorted(map(len, found))
    assert lengths[0] < TOKENS == lengths[-1], "one ended early, and no other with it"


def test_sampling_tells_equal_prompts_apart(tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("5 6 7\n5 6 7\n")
    words = ("data=synthetic", f"generate.prompts={file}", "generate.tokens=8")
    assert command("generate", *words, "generate.temperature=1") == 0
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first != second


def test_a_file_without_prompts_is_refused(tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text(" \n\n")
    assert command("generate", "data=synthetic", f"generate.prompts={file}") == 2
    assert "no prompt" in capsys.readouterr().err


def test_a_prompt_that_is_no_list_of_ids_is_refused_by_name(capsys):
    assert command("generate", "data=synthetic", "generate.prompt=Hello") == 2
    assert "generate.prompt: 'Hello' is not a list of token ids" in capsys.readouterr().err


def test_a_text_is_scored_from_its_second_token_to_its_last(tmp_path, capsys):
    reference = np.load(FOLDER / "reference.npz")
    tokens, logits = reference["input_ids"][0], reference["logits"][0].astype(np.float64)
    np.save(tmp_path / "text.npy", tokens)
    words = ("data=tokens", f"data.path={tmp_path / 'text.npy'}", "data.eval_fraction=1")
    words += (f"data.eos_token={tokens[-1]}", "data.pack=false", "data.seq_len=24", "data.batch=8")
    assert command("eval", *words) == 0
    said = capsys.readouterr().out
    log_sum = np.log(np.exp(logits[:-1]).sum(-1))
    expected = np.mean(log_sum - logits[np.arange(len(tokens) - 1), tokens[1:]])
    assert float(said.split("eval_loss=")[1].split()[0]) == pytest.approx(expected, abs=1e-5)
    assert f"eval_tokens={len(tokens) - 1}" in said
