"""Python starts with this file where a test pretends that there is a GPU: `standin` is put into
PyTorch when that is imported.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import standin_helpers

standin_helpers.await_torch()
