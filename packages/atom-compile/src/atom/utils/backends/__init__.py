import sys

import atom.compile.backend
from atom.compile.backend import *  # for type checkers

sys.modules[__name__] = atom.compile.backend
