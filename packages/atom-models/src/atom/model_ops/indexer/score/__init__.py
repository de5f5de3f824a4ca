"""Alias of `atom.models.deepseek_v4.indexer_score`: the same module object."""

import sys

import atom.models.deepseek_v4.indexer_score
from atom.models.deepseek_v4.indexer_score import *

sys.modules[__name__] = atom.models.deepseek_v4.indexer_score
