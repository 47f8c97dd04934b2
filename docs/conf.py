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


def leave_out(app: Sphinx, what: str, *told: Any) -> bool | None:
    """Leave out what a reference page need not say.

    Fields of named tuples: "Alias for field number 0" tells nobody anything. And names that a package takes over from a
    sibling for its users' convenience: they are described where they are at home.
    """
    _name, member, *_ = told
    package = f"fanfold.{app.env.docname.rpartition('/')[2]}"
    home = str(getattr(member, "__module__", package))
    taken_over = what == "module" and home.startswith("fanfold.") and not f"{home}.".startswith(f"{package}.")
    plain_field = str(member.__doc__).startswith("Alias for field number")
    return True if taken_over or plain_field else None


def setup(app: Sphinx) -> None:
    """Register what Sphinx asks."""
    app.connect("autodoc-skip-member", leave_out)
