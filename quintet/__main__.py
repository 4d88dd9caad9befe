"""`python -m quintet` is `quintet`."""

import sys

from quintet.commands.start import main

sys.exit(main())
