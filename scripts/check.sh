#!/usr/bin/env bash
# The quick gate before a commit: format, lints, documentation, licences. Runs no test; scripts/test.sh runs both.
set -euo pipefail
# shellcheck source=scripts/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

static_steps
all_passed
