from __future__ import annotations

from hypothesis import settings

# No test depends on timing, on machines that others use as well.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
