"""What every backend has to do, as tests. `fanfold.worker.testing` says how to run them over a backend of your own."""

from __future__ import annotations

from fanfold.worker.testing.conformance.calling import Calling
from fanfold.worker.testing.conformance.ends import Ends
from fanfold.worker.testing.conformance.failures import Failures
from fanfold.worker.testing.conformance.health import Health
from fanfold.worker.testing.conformance.parts import Parts
from fanfold.worker.testing.conformance.roles import Roles
from fanfold.worker.testing.conformance.starting import Starting
from fanfold.worker.testing.conformance.values import CallsAsValues


class Conformance(Starting, Calling, Parts, Failures, CallsAsValues, Health, Roles, Ends):
    """The tests; a class of yours that derives from this one says how groups are made, and what its backend lacks."""
