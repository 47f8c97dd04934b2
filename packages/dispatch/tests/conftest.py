from __future__ import annotations

import os

from hypothesis import settings

# No deadlines: a slow machine breaks no law. The same examples each time; `HYPOTHESIS_PROFILE=deep` looks elsewhere.
settings.register_profile("quick", deadline=None, max_examples=200, derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
