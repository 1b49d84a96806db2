"""The Metal Shading Language front end: from Metal compute source to C++ text and kernel signatures.

It needs a C preprocessor (the system's C++ compiler) and nothing else of the package.
"""

from .model import Argument, FunctionConstant, Kernel, MslError, Translation
from .translate import translate

__all__ = ["Argument", "FunctionConstant", "Kernel", "MslError", "Translation", "translate"]
