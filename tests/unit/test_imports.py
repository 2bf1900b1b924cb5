import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["whale", "whale.config", "whale.cli", "whale.loop", "whale.testing", "whale.launch", "whale.tryout"])
def test_the_core_loads_no_torch(module):
    code = f"import sys, {module}; bad = {{'torch', 'transformers', 'plotly', 'reasoning_gym'}} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
