import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["whale", "whale.config", "whale.cli", "whale.loop", "whale.testing", "whale.launch", "whale.tryout"]
)
def test_the_core_loads_no_torch(module):
    heavy = {"torch", "transformers", "plotly", "reasoning_gym"}
    code = f"import sys, {module}; bad = {heavy!r} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
