"""`python -m realm_lab`, the same as `realm-lab`."""

import sys

from realm_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
