"""`python -m quintet` is `quintet`."""

import sys

from quintet.cli import main

sys.exit(main())
