"""`python -m fanfold.ray` is the `fanfold` command."""

import sys

from fanfold.ray.command import main

sys.exit(main())
