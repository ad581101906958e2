"""What is refused: exit code 2, the key and the rule in the message, nothing made on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import ConfigError, load

# overrides, then what the message has to name
REFUSED = [
    # values of the wrong type
    ("optimizer.lr=fast", ["optimizer.lr=fast", "a number"]),
    ("optimizer.lr=1e-4_0", ["optimizer.lr=1e-4_0", "a number"]),
    ("optimizer.lr=nan", ["optimizer.lr=nan", "finite"]),
    ("optimizer.lr=inf", ["optimizer.lr=inf", "finite"]),
    ("optimizer.lr=1e999", ["optimizer.lr=1e999", "too large"]),
    ("optimizer.lr=", ["optimizer.lr", "empty", "a number"]),
    ("optimizer.lr=true", ["optimizer.lr=true", "a number"]),
    ("seed=010", ["seed=010", "whole number", "write 10"]),
    ("seed=0x10", ["seed=0x10", "whole number", "write 16"]),
    ("seed=1_000", ["seed=1_000", "whole number", "write 1000"]),
    ("seed=null", ["seed=null", "null is not allowed"]),
    ("train.steps=2.5", ["train.steps=2.5", "2 or 3"]),
    ("train.steps=1,2", ["train.steps=1,2", "--multirun"]),
    ("mesh.context=", ["mesh.context", "empty"]),
    ("mesh.data=True", ["mesh.data=True", "whole number"]),
    ("data.pack=maybe", ["data.pack=maybe", "true or false"]),
    ("data.pack=1", ["data.pack=1", "true or false"]),
    ("run.name=", ["run.name", "empty"]),
    ("model.param_dtype=float16", ["model.param_dtype=float16", "float32, bfloat16"]),
    ("context_parallel.layout=zig_zag", ["zig_zag", "did you mean zigzag"]),
    ("model={num_layers: 2}", ["model", "no such option"]),
    # out of range
    ("optimizer.lr=-1", ["optimizer.lr=-1", "at least 0"]),
    ("train.steps=0", ["train.steps=0", "at least 1"]),
    ("train.steps=-5", ["train.steps=-5", "at least 1"]),
    ("data.batch=0", ["data.batch=0", "at least 1"]),
    ("checkpoint.every=0", ["checkpoint.every=0", "at least 1"]),
    ("optimizer.b1=1.5", ["optimizer.b1=1.5", "[0, 1)"]),
    ("data.eval_fraction=1", ["data.eval_fraction=1", "[0, 1)"]),
    ("data.eval_fraction=1.1", ["data.eval_fraction=1.1", "[0, 1]"]),
    ("mode=generate init.from_hf=. generate.prompts=none", ["generate.prompts=", "no such file"]),
    ("optimizer.clip_norm=0", ["optimizer.clip_norm=0", "above 0", "null"]),
    ("seed=4294967296", ["seed=4294967296", "4294967295"]),
    ("mesh.data=0", ["mesh.data=0", "at least 1, or -1"]),
    ("mesh.data=-2", ["mesh.data=-2", "at least 1, or -1"]),
    # keys that do not exist, or are used in a way that does nothing
    ("optimizer.learning_rate=1", ["optimizer.learning_rate", "did you mean optimizer.lr"]),
    ("lr=1", ["lr", "did you mean optimizer.lr"]),
    ("model.dtype=bfloat16", ["did you mean model.param_dtype or model.compute_dtype"]),
    ("model.nlayers=3", ["model.nlayers", "did you mean model.num_layers"]),
    ("train.step=3", ["train.step", "did you mean train.steps"]),
    ("+model.nlayers=3", ["+model.nlayers", "did you mean model.num_layers"]),
    ("+unknown=1", ["+unknown", "no such key"]),
    ("++unknown=1", ["++unknown", "no such key"]),
    ("+train.steps=5", ["+train.steps", "train.steps=5"]),
    ("~train.steps", ["~train.steps", "cannot be taken away"]),
    ("+experiment=smoke", ["+experiment", "; experiment=smoke"]),
    ("model@draft=tiny", ["model@draft", "; model=tiny"]),
    ("~model", ["~model", "only chosen from"]),
    ("model=null", ["model=null", "no such option"]),
    ("train.steps", ["train.steps", "train.steps=VALUE"]),
    ("train.steps=1e99999999999999999999", ["train.steps=1e9999", "a whole number"]),
    ("generate.prompt=${x}", ["generate.prompt", "'x'", "\\${"]),
    ("run={name: 5}", ["run.name=5", "text"]),
    ("optimizer.lr=1 optimizer.lr=2", ["optimizer.lr", "2 times", "=1", "=2"]),
    ("model=tiny model=small_25m", ["model", "2 times"]),
    ("model=huge", ["model=huge", "llama3_8b", "tiny"]),
    ("optimizer=adam", ["optimizer=adam", "did you mean adamw"]),
    ("train", ["train", "key=value"]),
    ("hydra/launcher=nowhere", ["hydra/launcher", "basic"]),
    ("run.dir=${oc.env:FOLDTEXT_NOT_SET}", ["run.dir", "FOLDTEXT_NOT_SET"]),
    ("model.rope_scaling={type:", ["quotes"]),
    # rules across keys
    (
        "mesh.simulate=2 mesh.context=2 data.seq_len=10",
        ["seq_len=10", "context=2", "multiple of", "4"],
    ),
    ("mesh.context=3 data.seq_len=10 context_parallel=striped", ["seq_len=10", "3", "9 or 12"]),
    ("mesh.simulate=8 mesh.data=3", ["mesh.data=3", "8 devices", "would fit"]),
    ("mesh.simulate=8 mesh.data=16", ["mesh.data=16", "8 devices"]),
    ("mesh.simulate=8 mesh.data=-1 mesh.context=3", ["mesh.context=3", "8 devices"]),
    ("mesh.data=-1 mesh.context=-1", ["mesh.data=-1", "mesh.context=-1", "one axis"]),
    ("mesh.data=-1 mesh.fsdp=-1", ["mesh.data=-1", "mesh.fsdp=-1", "one axis"]),
    ("mesh.data=4 mesh.fsdp=1 data.batch=6", ["data.batch=6", "4", "4 or 8"]),
    ("mesh.simulate=8 data.batch=12", ["data.batch=12", "8 or 16"]),
    ("train.grad_accum=3", ["data.batch=8", "train.grad_accum=3", "6 or 9"]),
    ("mesh.simulate=8 train.grad_accum=4", ["grad_accum=4", "2 rows", "data.batch=32"]),
    ("mesh.tensor=4 model.num_heads=6 model.num_kv_heads=6", ["num_heads=6", "tensor=4"]),
    ("mesh.tensor=2 model.num_kv_heads=1", ["num_kv_heads=1", "tensor=2"]),
    ("mesh.tensor=4 model.mlp_dim=30", ["mlp_dim=30", "tensor=4"]),
    ("model.num_kv_heads=3", ["num_heads=8", "num_kv_heads=3", "1, 2, 4, 8"]),
    (
        "context_parallel=ulysses model.num_heads=6 model.num_kv_heads=2 mesh.context=4",
        ["num_heads(6)", "mesh.context=4", "mesh.context=1, 2, 3, 6"],
    ),
    ("model.indexer.num_heads=4", ["model.indexer.num_heads=4", "latent.kv_rank=None"]),
    (
        "model=deepseek_v32_671b model.indexer.head_dim=32",
        ["model.indexer.head_dim=32", "model.latent.rope_dim(64)", "64 or more"],
    ),
    (
        "model=deepseek_v32_671b context_parallel=ulysses mesh.context=2 mesh.simulate=2",
        ["model.indexer.top_k=2048", "all_gather or ring would fit"],
    ),
    # devices that are not here
    ("mesh.topology=v5p:2x2x2", ["mode=train", "mode=compile", "mesh.topology=null"]),
    ("mode=plan mesh.topology=v5q:2x2x2", ["mesh.topology=v5q:2x2x2", "v5p:4x4x8", "v6e"]),
    ("mode=compile mesh.topology=v5p", ["mesh.topology=v5p", "v5p:4x4x8"]),
    ("mode=compile mesh.topology=v5e:0x4", ["mesh.topology=v5e:0x4", "one chip"]),
    ("mode=plan mesh.simulate=8 mesh.topology=v5e:2x4", ["mesh.simulate=8", "one of them"]),
    (
        "mode=plan mesh.topology=v4:2x2x1 mesh.context=3",
        ["mesh.context=3", "8 devices", "would fit"],
    ),
    ("mode=compile mesh.topology=v5e:2x2 attention.kernel=cudnn data.pack=false", ["runs on gpu"]),
    # what attention cannot do
    (
        "attention.kernel=splash context_parallel=ring",
        ["attention.kernel=splash", "strategy=ring", "all_gather or ulysses"],
    ),
    (
        "attention.kernel=splash mesh.context=4 data.seq_len=768",
        ["data.seq_len(768)", "mesh.context(4)", "multiple of 128", "512 or 1024"],
    ),
    ("attention.kernel=splash mesh.simulate=8", ["runs on tpu", "cpu", "auto or xla"]),
    ("attention.kernel=cudnn", ["attention.kernel=cudnn", "data.pack=true", "auto or xla"]),
    (
        "attention.kernel=cudnn data.pack=false model.layer_pattern=local*5,global model.window=64",
        ["attention.kernel=cudnn", "model.window=64", "auto or xla"],
    ),
    (
        "attention.kernel=cudnn data.pack=false model.attention_soft_cap=50",
        ["attention.kernel=cudnn", "model.attention_soft_cap=50", "auto or xla"],
    ),
    (
        "attention.kernel=cudnn data.pack=false model.head_dim=20 model.compute_dtype=float32",
        ["model.head_dim=20", "16 or 24", "float32", "model.compute_dtype=bfloat16"],
    ),
    (
        "attention.kernel=cudnn data.pack=false context_parallel.layout=striped mesh.context=2",
        ["attention.kernel=cudnn", "stripes", "layout=zigzag or contiguous"],
    ),
    ("model.head_dim=33", ["head_dim=33", "multiple of 2"]),
    ("model.remat=everything", ["remat=everything", "none, full, dots"]),
    ("model.remat=query,querry", ["querry", "query"]),
    ("model.rope_scaling.factor=8", ["rope_scaling.factor=8", "type=linear"]),
    ("schedule.warmup_steps=12 train.steps=10", ["warmup_steps=12", "train.steps=10"]),
    ("schedule=wsd schedule.warmup_steps=6 schedule.decay_steps=5 train.steps=10", ["5", "4 is"]),
    ("schedule.decay_steps=5", ["decay_steps=5", "cosine", "wsd"]),
    ("model.vocab_size=256", ["vocab_size=256", "257"]),
    ("data=text", ["data.path=null", "data.path=PATH"]),
    ("data=text data.path=/no/such/file", ["data.path=/no/such/file", "no such file"]),
    ("data.path=/tmp", ["data.path=/tmp", "stdlib", "data=text"]),
    ("run.name=a/b", ["run.name=a/b", "run.dir"]),
    ("mode=eval", ["run.dir", "mode=eval"]),
    ("mode=generate run.dir=nowhere", ["run.dir", "nowhere", "config.yaml"]),
    ("checkpoint.resume=required", ["checkpoint.resume=required", "auto"]),
    ("mode=teach", ["mode=teach", "train, eval, generate, plan"]),
]


@pytest.mark.parametrize(("words", "named"), REFUSED, ids=[words for words, _ in REFUSED])
def test_a_refused_config_exits_2_and_names_the_key_and_the_rule(
    words, named, command_line, capsys, tmp_path
):
    overrides = [words] if "{" in words else words.split()
    assert command_line(*overrides) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert all(name in said for name in named), said
    assert command_line.ran == []
    assert list(tmp_path.iterdir()) == []


def test_what_an_attention_kernel_can_do_is_not_refused():
    for words in (
        "attention.kernel=splash mesh.context=4 data.seq_len=1024",
        "attention.kernel=cudnn data.pack=false mesh.context=2 model.sinks=true",
        "mode=generate init.from_hf=. attention.kernel=cudnn",  # generating has its own attention
    ):
        assert "attention.kernel" not in "".join(_problems(words.split()))


def _problems(overrides):
    try:
        load(overrides)
    except ConfigError as error:
        return error.problems
    return []


def test_every_problem_is_reported_at_once():
    with pytest.raises(ConfigError) as refused:
        load(
            [
                "optimizer.lr=fast",
                "train.steps=0",
                "data.seq_len=10",
                "mesh.context=2",
                "model.nlayers=3",
                "schedule=cosin",
                "model.num_kv_heads=3",
                "seed=1",
                "seed=2",
            ]
        )
    problems = refused.value.problems
    assert len(problems) == 7
    assert all("\n" not in problem for problem in problems)
    for key in ("optimizer.lr", "train.steps", "data.seq_len", "model.nlayers", "schedule=cosin"):
        assert sum(key in problem for problem in problems) == 1
    assert str(refused.value).splitlines() == problems


def test_an_override_that_is_not_utf8_is_refused(command_line, capsys):
    assert command_line("run.name=\udcff") == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_a_run_dir_that_is_a_file_is_refused(command_line, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert command_line("run.dir=file") == 2
    assert "this is a file" in capsys.readouterr().err


def test_a_whole_process_refuses_without_a_traceback(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, root / "train.py", "lr=1", "train.steps=0", "run.name=ü"],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"")
    assert said.splitlines() == [
        "The configuration is refused: 2 problems.",
        "  - lr: there is no such key; did you mean optimizer.lr?",
        "  - train.steps=0: must be at least 1",
    ]
    assert list(tmp_path.iterdir()) == []
