"""Parameter counts from the declaration alone equal those of the published checkpoints."""

from __future__ import annotations

import math

import jax
import pytest

from configs import load
from configs.compose import groups
from model import build_model, parameter_specs
from model.hf.config_json import read_config, write_config

# Sums over the tensors of the checkpoints on the Hugging Face hub. DeepSeek-V3 without its layer
# for a second token; Gemma 3 from 4b up without the vision tower and its projector.
PUBLISHED = {
    "llama2_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "llama3_1_8b": 8_030_261_248,
    "llama3_2_1b": 1_235_814_400,
    "smollm2_135m": 134_515_008,
    "smollm3_3b": 3_075_098_624,
    "mistral_7b": 7_241_732_096,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_620_634_112,
    "qwen2_5_0.5b": 494_032_768,
    "qwen2_5_1.5b": 1_543_714_304,
    "qwen2_5_7b": 7_615_616_512,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 4_300_079_472 - 416_866_032 - 2_950_272,
    "gemma3_12b": 12_187_325_040 - 416_866_032 - (1152 * 3840 + 1152),
    "gemma3_27b": 27_432_406_640 - 416_866_032 - (1152 * 5376 + 1152),
    "olmo2_1b": 1_484_916_736,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "olmo3_7b": 7_298_011_136,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3_671b": 671_026_419_200,
    "deepseek_v32_671b": 671_026_419_200 + 61 * (12_582_912 + 917_504 + 256 + 458_752),
}
OUR_OWN = {"tiny", "small_25m", "base_125m"}


def test_every_model_config_is_counted():
    assert set(groups(None)["model"]) == PUBLISHED.keys() | OUR_OWN


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items())
def test_a_model_has_as_many_parameters_as_was_published(name, expected):
    specs = parameter_specs(build_model(load([f"model={name}"]).model, platform="cpu"))
    assert sum(math.prod(spec.shape) for spec in jax.tree.leaves(specs)) == expected


@pytest.mark.parametrize("name", sorted(PUBLISHED | dict.fromkeys(OUR_OWN)))
def test_config_json_says_what_the_model_is(name):
    model = load([f"model={name}"]).model
    written = write_config(model)  # refuses what it cannot say
    assert read_config(written, name).family == model.family == written["model_type"]
