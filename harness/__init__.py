"""The harness of twinbench: what is measured, how parity is proved, and how results are stored and shown."""
