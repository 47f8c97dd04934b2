from __future__ import annotations

import sys
from pathlib import Path

# What tests share lies beside them; it is no package, and nothing that is installed.
sys.path.insert(0, str(Path(__file__).parent))
