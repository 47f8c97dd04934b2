from __future__ import annotations

from hypothesis import settings

# No test depends on timing, on machines that others use as well; what decides whether a change lands is not drawn anew
# each time: `nox -s deep` looks elsewhere.
settings.register_profile("patient", deadline=None, derandomize=True)
settings.load_profile("patient")
