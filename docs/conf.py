"""Sphinx settings of the site: `make site` builds it from what tools/make_site.py lays out in build/site-source."""

import os

from numpy.typing import DTypeLike
from sphinx.util.typing import stringify_annotation

import gpukit

project = "gpukit"
author = "gpukit contributors"
release = version = gpukit.__version__
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
# A link or reference that leads nowhere is a warning, and a warning ends the build.
nitpicky = True

# Notebooks are shown as they are stored: the outputs were recorded on a GPU.
nb_execution_mode = "off"
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
# Types are words, such as "(M, K) array": as text they need no target to link to.
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
toc_object_entries_show_parents = "hide"
# A docstring's `name` is a link where that name has a page, and code elsewhere: types, and names that are not public.
default_role = "py:obj"
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"gpukit {release}"
if "GITHUB_REPOSITORY" in os.environ:  # a site that the workflow publishes leads back to its repository
    address = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    html_theme_options = {"footer_icons": [{"name": "Repository", "url": address, "html": "Repository", "class": ""}]}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"


def setup(app):
    """Leave out what a named tuple's fields say of themselves, and the many types that are called ``DTypeLike``."""
    spelled_out = stringify_annotation(DTypeLike, "smart")

    def shorten(app, what, name, value, options, signature, returned):
        return (signature or "").replace(spelled_out, "DTypeLike") or None, returned

    app.connect("autodoc-process-signature", shorten)

    def skip(app, what, name, value, skipped, options):
        return True if (getattr(value, "__doc__", None) or "").startswith("Alias for field") else None

    app.connect("autodoc-skip-member", skip)
