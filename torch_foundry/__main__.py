"""`python -m torch_foundry` is `torch-foundry`."""

import sys

from torch_foundry.cli import main

sys.exit(main())
