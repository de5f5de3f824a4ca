"""Alias of `atom.graphs.nccl_watchdog`: the same module object."""

import sys

import atom.graphs.nccl_watchdog
from atom.graphs.nccl_watchdog import *

sys.modules[__name__] = atom.graphs.nccl_watchdog
