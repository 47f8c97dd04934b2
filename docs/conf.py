"""How the documentation is built: `nox -s docs`."""

from typing import Any

from sphinx.application import Sphinx

project = "fanfold"
author = "the fanfold developers"
project_copyright = "the fanfold developers"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
suppress_warnings = ["ref.python"]  # a short name that two packages have links to the first of them
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes stand in the class's own description, once
napoleon_use_rtype = False

html_theme = "furo"
html_title = "fanfold"


def skip_plain_fields(*told: Any) -> bool | None:
    """Leave out the fields of named tuples: "Alias for field number 0" tells nobody anything."""
    _app, _what, _name, member, *_ = told
    return True if str(member.__doc__).startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    """Register what Sphinx asks."""
    app.connect("autodoc-skip-member", skip_plain_fields)
