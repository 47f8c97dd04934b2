"""A pytest plugin with the profile of `nox -s deep`: many examples, no deadline."""

from hypothesis import settings

settings.register_profile("deep", max_examples=3000, deadline=None, print_blob=True)
