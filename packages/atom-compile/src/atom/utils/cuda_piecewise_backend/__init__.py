import sys

import atom.compile.piecewise_backend
from atom.compile.piecewise_backend import *  # for type checkers

sys.modules[__name__] = atom.compile.piecewise_backend
