"""Alias of `atom.graphs.draft_graph`: the same module object."""

import sys

import atom.graphs.draft_graph
from atom.graphs.draft_graph import *

sys.modules[__name__] = atom.graphs.draft_graph
