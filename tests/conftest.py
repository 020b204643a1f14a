"""What every test needs: one thread a worker, so that parallel workers do not fight over cores.

Set before torch is imported and inherited by the programs that tests start.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
