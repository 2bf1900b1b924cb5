"""Engines: what samples from a policy."""

import os

# Read by the OpenMP runtime when torch is loaded. Its threads otherwise spin while they wait for each other, which
# makes every operation wait for the scheduler as soon as anything else runs: measured on two busy cores, sampling
# took seven times as long. A choice of the user's stands.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
