"""Attention is compiled quickly, but where its rounding or the compiled program is the subject."""

from tests import quick_compile

compiles_quickly = quick_compile.fixture(but=("test_compiled", "test_numerics"))
