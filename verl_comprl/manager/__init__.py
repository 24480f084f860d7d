"""The experience manager: the one process that owns bank, distillation queue and training buffer."""
