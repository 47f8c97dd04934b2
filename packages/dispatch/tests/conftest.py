from __future__ import annotations

import os

from hypothesis import settings

# No deadlines: a slow machine is not a broken law. `HYPOTHESIS_PROFILE=deep` looks harder.
settings.register_profile("quick", deadline=None, max_examples=200)
settings.register_profile("deep", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
