"""`python -m quintet` is `quintet`."""

import sys

from quintet.start import main

sys.exit(main())
