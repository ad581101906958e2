"""Models are compiled quickly, where the compiled program itself is not the subject."""

from tests import quick_compile

compiles_quickly = quick_compile.fixture(but=("test_layer_plan", "test_placement"))
