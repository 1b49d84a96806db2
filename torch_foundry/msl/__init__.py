"""The Metal Shading Language front end: Metal compute source in, C++ text and kernel signatures out.

It needs a C preprocessor (the system's C++ compiler) and nothing else of the package.
"""

from .errors import MslError
from .model import Argument, FunctionConstant, Kernel, Translation
from .translate import translate

__all__ = ["Argument", "FunctionConstant", "Kernel", "MslError", "Translation", "translate"]
