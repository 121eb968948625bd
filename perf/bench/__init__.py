# __init__.py - Postern's benchmarks: what to run (loads_*), where (columns, process, session), and what it says (checks, report, svg).
# SPDX-License-Identifier: Apache-2.0
