"""Alias of `atom.graphs.forward_context`: the same module object."""

import sys

import atom.graphs.forward_context
from atom.graphs.forward_context import *

sys.modules[__name__] = atom.graphs.forward_context
