"""Alias of `atom.graphs.region_graph`: the same module object."""

import sys

import atom.graphs.region_graph
from atom.graphs.region_graph import *

sys.modules[__name__] = atom.graphs.region_graph
